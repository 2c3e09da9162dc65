attnbookFigures.compute.what_it_costs = ({ d_model: d, layers, tokens, batch, shared, machine }, _, { range, sum }) => {
  const heads = d / 64, lengths = range(11).map((i) => 2 ** (i + 7));
  const kv = shared === "all" ? 64 : d / +shared;  // numbers of a token's keys, and of its values
  const readable = (name, count) => {
    const letters = ["", "k", "M", "G", "T", "P", "E"];
    while (count >= 1000 && letters.length > 1) { count /= 1000; letters.shift(); }
    return { [name]: count, [`${name}_letter`]: letters[0] };
  };
  // Operations of a token in a block, and of a pair of tokens.
  const projections = 4 * d * (d + kv), forward = 16 * d * d, one = 4 * d, output = 2 * d * 50257;
  const parts = [layers * tokens * projections, layers * tokens * tokens * one,
    layers * tokens * forward, tokens * output];
  const total = sum(parts);
  const parameters = 50257 * d + layers * (2 * d * (d + kv) + 8 * d * d + 2 * d) + d;
  const states = 16 * parameters, rows = batch * tokens, stream = 2 * rows * d;
  const norm = 4 * rows + stream;
  const kept = 8 * rows + norm + stream + rows * (4 * 50257 + 8) + 4 + layers * (
    stream + 4 * rows * (d + kv) + 256 * tokens + 4 * rows * heads + stream + 16 * rows * d + 2 * norm);
  const weights = 2 * parameters, cache = 4 * layers * kv * tokens * batch;
  const step = batch * (layers * (projections + forward + one * (tokens + 1)) + output);
  const [peak, bandwidth] = { H100: [989e12, 3.35e12], laptop: [2e11, 5e10] }[machine];
  const reading = (weights + cache) / bandwidth, computing = step / peak;
  const least = Math.max(reading, computing), others = projections + forward;
  const share = (n) => one * n / (one * n + others);
  return {
    at: lengths.indexOf(tokens), curve: lengths.map(share), share: share(tokens),
    equal: projections / one, half: others / one,
    pieces: parts.map((part) => part / total), begins: parts.map((_, i) => sum(parts.slice(0, i)) / total),
    kept_share: kept / (kept + states), states_share: states / (kept + states),
    cache_share: cache / (weights + cache), weights_share: weights / (weights + cache),
    ms: 1000 * least, slower: reading >= computing ? "reading" : "computing",
    ...readable("operations", total), ...readable("states", states), ...readable("kept", kept),
    ...readable("weights", weights), ...readable("cache", cache), ...readable("rate", batch / least),
  };
};
