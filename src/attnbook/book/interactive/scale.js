attnbookFigures.compute.scale = ({ d_k, scaled, row }, { logits, measured }, { softmax, sum }) => {
  const factor = scaled ? 1 : Math.sqrt(d_k);
  const tables = logits.map((each) => softmax(each.map((s) => (factor * s) / 1000)));
  const norms = tables.map((a) => Math.sqrt(sum(a.map((x, i) => {
    const others = a.map((y, j) => (i === j ? 0 : x * y));
    return sum(others) ** 2 + sum(others.map((p) => p * p));
  }))));
  const weights = tables[row - 1];
  const dead = norms.map((norm) => norm < 0.001);
  return {
    weights, norms, dead, measured,
    places: norms.map((norm) => Math.log10(Math.max(norm, 1e-8))),
    largest: Math.max(...weights),
    effective: 1 / sum(weights.map((x) => x ** 2)),
    norm: norms[row - 1],
    n_dead: sum(dead.map(Number)),
    share_dead: sum(dead.map(Number)) / norms.length,
    mine: dead.map((_, i) => i === row - 1),
  };
};
