// The book's models in plain script: embedding, norms, attention with a cache, feed-forward,
// sampling. The weights are those of attnbook's own files, and so are the numbers: one row, one
// token at a time, in the order of the equations.
var live = (window.attnbookLive ??= { files: {}, start: {} });  // read again if a file was lost

/** A number in 16 bits; weights are finite. */
live.half = (bits) => {
  const exponent = (bits >> 10) & 31, fraction = bits & 1023, sign = bits >> 15 ? -1 : 1;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
};

live.add = (x, y) => x.map((each, i) => each + y[i]);

live.softmax = (logits) => {
  const largest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = logits.map((each) => Math.exp(each - largest));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((each) => each / sum);
};

/** What a model of attnbook computes, from a safetensors file in base64. */
live.Model = class {
  constructor(file) {
    const text = atob(file), bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    const view = new DataView(bytes.buffer), start = 8 + view.getUint32(0, true);
    const { __metadata__, ...header } = JSON.parse(new TextDecoder().decode(bytes.subarray(8, start)));
    this.config = JSON.parse(__metadata__.config);
    this.tensors = {};
    for (const [name, { shape, data_offsets: [from, to] }] of Object.entries(header)) {
      const values = new Float64Array((to - from) / 2);
      for (let i = 0; i < values.length; i++) values[i] = live.half(view.getUint16(start + from + 2 * i, true));
      this.tensors[name] = { shape, values };
    }
  }

  /** x W^T + b */
  linear(name, x) {
    const { shape: [rows, columns], values } = this.tensors[`${name}.weight`];
    const bias = this.tensors[`${name}.bias`]?.values, y = new Float64Array(rows);
    for (let i = 0, k = 0; i < rows; i++) {
      let sum = bias ? bias[i] : 0;
      for (let j = 0; j < columns; j++) sum += values[k++] * x[j];
      y[i] = sum;
    }
    return y;
  }

  norm(name, x) {
    const gain = this.tensors[`${name}.weight`].values, bias = this.tensors[`${name}.bias`].values;
    const mean = x.reduce((a, b) => a + b, 0) / x.length;
    const variance = x.reduce((a, b) => a + (b - mean) ** 2, 0) / x.length;
    const scale = 1 / Math.sqrt(variance + this.config.norm_eps);
    return x.map((each, i) => (each - mean) * scale * gain[i] + bias[i]);
  }

  /** The angle by which pair i of a vector of this width turns at a position. */
  angle(position, i, width) {
    return position * 10000 ** ((-2 * i) / width);
  }

  embed(id, position) {
    const { d_model: d, scaled, position: kind } = this.config;
    const row = this.tensors["embedding.weight"].values.slice(id * d, (id + 1) * d);
    const x = scaled ? row.map((each) => each * Math.sqrt(d)) : row;
    if (kind !== "sinusoidal") return x;
    return x.map((each, i) => {
      const angle = this.angle(position, i >> 1, d);
      return each + (i % 2 ? Math.cos(angle) : Math.sin(angle));
    });
  }

  /** Rotary positions: each head's first half turns with its second. */
  rotate(x, position) {
    if (this.config.position !== "rotary") return x;
    const width = x.length / this.config.n_heads, half = width / 2, y = x.slice();
    for (let k = 0; k < x.length; k++) {
      const i = k % width;
      if (i >= half) continue;
      const angle = this.angle(position, i, width), cos = Math.cos(angle), sin = Math.sin(angle);
      y[k] = x[k] * cos - x[k + half] * sin;
      y[k + half] = x[k + half] * cos + x[k] * sin;
    }
    return y;
  }

  /** A token's key and value go into the cache. */
  remember(name, x, cache) {
    cache.keys.push(this.rotate(this.linear(`${name}.key`, x), cache.keys.length));
    cache.values.push(this.linear(`${name}.value`, x));
  }

  /** What a query gets from the cache, and the weights of each head; heads that are off add none. */
  attend(name, x, { keys, values }, { position = 0, seen = () => true, on = () => true } = {}) {
    const { n_heads } = this.config, width = x.length / n_heads;
    const query = this.rotate(this.linear(`${name}.query`, x), position);
    const mixed = new Float64Array(x.length), weights = [];
    for (let head = 0; head < n_heads; head++) {
      const from = head * width;
      const logits = keys.map((key, j) => {
        if (!seen(j)) return -Infinity;
        let sum = 0;
        for (let i = from; i < from + width; i++) sum += query[i] * key[i];
        return sum / Math.sqrt(width);
      });
      weights.push(live.softmax(logits));
      if (on(head)) values.forEach((value, j) => {
        for (let i = from; i < from + width; i++) mixed[i] += weights[head][j] * value[i];
      });
    }
    return { output: this.linear(`${name}.output`, mixed), weights };
  }

  feedForward(name, x) {
    const inner = this.linear(`${name}.inner`, x);
    if (this.config.activation === "relu") return this.linear(`${name}.outer`, inner.map((each) => Math.max(each, 0)));
    const gate = this.linear(`${name}.gate`, x);  // swiglu
    return this.linear(`${name}.outer`, inner.map((each, i) => (each * gate[i]) / (1 + Math.exp(-gate[i]))));
  }

  /** Tied: the table of embeddings is the output layer. */
  logits(x) {
    return this.linear("embedding", x);
  }

  /** Pre-norm: the stream, plus what a sublayer makes of its normed copy. */
  withFeedForward(block, x) {
    return live.add(x, this.feedForward(`${block}.feed_forward`, this.norm(`${block}.feed_forward_residual.norm`, x)));
  }

  newCache() {
    return Array.from({ length: this.config.n_layers }, () => ({ keys: [], values: [] }));
  }

  /** A language model reads one more token: logits of the next. */
  step(id, cache) {
    const position = cache[0].keys.length;
    let x = this.embed(id, position);
    cache.forEach((seen, i) => {
      const block = `blocks.${i}`, normed = this.norm(`${block}.attention_residual.norm`, x);
      this.remember(`${block}.attention`, normed, seen);
      x = live.add(x, this.attend(`${block}.attention`, normed, seen, { position }).output);
      x = this.withFeedForward(block, x);
    });
    return this.logits(this.norm("final_norm", x));
  }

  /** The encoder of an encoder-decoder: keys and values of its memory, for each decoder block. */
  encode(ids) {
    let rows = ids.map((id, i) => this.embed(id, i));
    for (let i = 0; i < this.config.n_layers; i++) {
      const block = `encoder_blocks.${i}`, cache = { keys: [], values: [] };
      const normed = rows.map((x) => this.norm(`${block}.attention_residual.norm`, x));
      normed.forEach((x) => this.remember(`${block}.attention`, x, cache));
      rows = rows.map((x, j) => live.add(x, this.attend(`${block}.attention`, normed[j], cache).output));
      rows = rows.map((x) => this.withFeedForward(block, x));
    }
    return this.newCache().map((cache, i) => {
      rows.forEach((x) => this.remember(`decoder_blocks.${i}.cross_attention`, this.norm("encoder_norm", x), cache));
      return cache;
    });
  }

  /** The decoder reads one more token: logits of the next, and where the last block looked. */
  decode(id, cache, memory, limits) {
    const position = cache[0].keys.length;
    let x = this.embed(id, position), weights;
    cache.forEach((own, i) => {
      const block = `decoder_blocks.${i}`, normed = this.norm(`${block}.attention_residual.norm`, x);
      this.remember(`${block}.attention`, normed, own);
      x = live.add(x, this.attend(`${block}.attention`, normed, own, { position }).output);
      const asked = this.norm(`${block}.cross_attention_residual.norm`, x);
      const found = this.attend(`${block}.cross_attention`, asked, memory[i], limits);
      x = live.add(x, found.output);
      weights = found.weights;
      x = this.withFeedForward(block, x);
    });
    return { logits: this.logits(this.norm("decoder_norm", x)), weights };
  }
};

/** The probabilities to draw from: the logits over a temperature, of the likeliest tokens only. */
live.probabilities = (logits, { temperature = 1, topK = Infinity, topP = 1 } = {}) => {
  const order = [...logits.keys()].sort((a, b) => logits[b] - logits[a] || a - b);
  const kept = order.slice(0, temperature === 0 ? 1 : topK), p = new Float64Array(logits.length);
  const drawn = live.softmax(kept.map((i) => logits[i] / (temperature || 1)));
  let before = 0;
  kept.forEach((token, i) => {
    if (before < topP) p[token] = drawn[i];
    before += drawn[i];
  });
  const sum = p.reduce((a, b) => a + b, 0);
  return p.map((each) => each / sum);
};

live.percent = (p) => (p < 0.001 ? "< 0.1 %" : `${(100 * p).toFixed(p > 0.1 ? 0 : 1)} %`);

/** Numbers in [0, 1) that are the same for the same seed (Mulberry32). */
live.random = (seed) => () => {
  seed = (seed + 0x6d2b79f5) | 0;
  let t = Math.imul(seed ^ (seed >>> 15), seed | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
};

/** The token at which the probabilities, added up, pass a number in [0, 1). */
live.draw = (p, at) => {
  let last = 0;
  for (let i = 0, sum = 0; i < p.length; i++) {
    if (p[i] > 0) last = i;
    if ((sum += p[i]) > at) return i;
  }
  return last;
};

/** Byte-pair encoding, as a tokenizer.json of byte-level pieces has it. */
live.BytePairs = class {
  constructor({ model: { vocab, merges } }) {
    this.ids = new Map(Object.entries(vocab));
    this.pieces = Object.keys(vocab).sort((a, b) => vocab[a] - vocab[b]);
    this.rank = new Map(merges.map((pair, i) => [pair.join(" "), i]));
    // Bytes that don't print stand for themselves as letters from 256 on.
    const prints = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    let extra = 256;
    this.letters = Array.from({ length: 256 }, (_, byte) => String.fromCharCode(prints(byte) ? byte : extra++));
    this.bytes = new Map(this.letters.map((letter, byte) => [letter, byte]));
  }

  encode(text) {
    const words = text.match(/'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu) ?? [];
    return words.flatMap((word) => {
      let parts = [...new TextEncoder().encode(word)].map((byte) => this.letters[byte]);
      for (;;) {
        const ranks = parts.slice(1).map((part, i) => this.rank.get(`${parts[i]} ${part}`) ?? Infinity);
        const i = ranks.indexOf(Math.min(...ranks));
        if (i < 0 || ranks[i] === Infinity) break;
        parts = [...parts.slice(0, i), parts[i] + parts[i + 1], ...parts.slice(i + 2)];
      }
      return parts.map((part) => this.ids.get(part));
    });
  }

  decode(ids) {
    const letters = ids.map((id) => this.pieces[id]).join("");
    return new TextDecoder().decode(Uint8Array.from(letters, (letter) => this.bytes.get(letter)));
  }
};
