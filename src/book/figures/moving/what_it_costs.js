attnbookFigures.compute.what_it_costs = ({ d_model: d, layers, tokens, batch, shared, machine }, _, { range, sum }) => {
  const lengths = range(11).map((i) => 2 ** (i + 7));
  const kv = shared === "all" ? 64 : d / +shared;  // numbers of a token's keys, and of its values
  const readable = (name, count) => {
    const letters = ["", "k", "M", "G", "T", "P", "E"];
    while (count >= 1000 && letters[1]) { count /= 1000; letters.shift(); }
    return { [name]: count, [`${name}_letter`]: letters[0] };
  };
  // Operations of a token in a block, and of a pair of tokens.
  const matrices = 4 * d * (d + kv), both = matrices + 16 * d * d, pair = 4 * d, output = 2 * d * 50257;
  const share = (n) => pair * n / (pair * n + both);
  const parts = [matrices, tokens * pair, 16 * d * d].map((n) => layers * tokens * n);
  parts.push(tokens * output);
  const total = sum(parts), pieces = parts.map((part) => part / total);
  const weights = 2 * (50257 * d + layers * (both / 2 + 2 * d) + d), states = 8 * weights;
  const rows = batch * tokens, stream = 2 * rows * d, norm = 4 * rows + stream;
  const kept = norm + stream + rows * 201044 + 4 + layers * (
    10 * stream + 4 * rows * (d + kv + d / 64) + 256 * tokens + 2 * norm);
  const cache = 4 * layers * kv * rows, read = weights + cache;
  const step = batch * (layers * (both + pair * (tokens + 1)) + output);
  const [peak, bytes] = { H100: [989e12, 3.35e12], laptop: [2e11, 5e10] }[machine];
  const least = Math.max(read / bytes, step / peak);
  return {
    at: lengths.indexOf(tokens), curve: lengths.map(share), share: share(tokens),
    equal: matrices / pair, half: both / pair,
    pieces, begins: pieces.map((_, i) => sum(pieces.slice(0, i))),
    kept_share: kept / (kept + states), states_share: states / (kept + states),
    cache_share: cache / read, weights_share: weights / read,
    ms: 1000 * least, slower: read / bytes >= step / peak ? "reading" : "computing",
    ...readable("operations", total), ...readable("states", states), ...readable("kept", kept),
    ...readable("trained", states + kept), ...readable("read", read),
    ...readable("weights", weights), ...readable("cache", cache), ...readable("rate", batch / least),
  };
};
