attnbookFigures.compute.who_attends = (settings, { powers, names }, { range, sum, softmax }) => {
  const { mask, empty, cut, row, column } = settings, at = 6 * row + column;
  const may = range(36).map((k) => {
    const i = Math.floor(k / 6), j = k % 6;
    return mask === "none" || (mask === "padding" ? j < 4 : mask === "both" ? i < 4 && j < 4
      : j <= i && (mask === "causal" || j >= i - 1));
  });
  const left = may.map((each, k) => each && !cut[k]), by = (i) => left.slice(6 * i, 6 * i + 6);
  const alone = range(6).map((i) => !by(i).includes(true));
  const tables = alone.map((none, i) => none ? range(6).map(() => (empty === "mean" ? 1 / 6 : 0))
    : softmax(by(i).map((on, j) => (on ? Math.log(powers[i][j]) : -Infinity))));
  const nan = alone.map((none) => none && empty === "nan"), bad = (k) => nan[Math.floor(k / 6)];
  const weights = tables.flat(), edge = weights.map((a) => a > 0), own = tables[row];
  if (mask === "padding" || mask === "both") names = [...names.slice(0, 4), "pad", "pad"];
  const largest = Math.max(...own);
  return {
    names, weights, edge, nan, largest,
    lit: edge.map((each, k) => each && Math.floor(k / 6) === row),
    gone: may.map((each, k) => !each && !cut[k] && !bad(k)),
    crossed: cut.map((each, k) => each && !bad(k)),
    mine: alone.map((_, i) => i === row),
    sums: tables.map((each, i) => (nan[i] ? "NaN" : sum(each).toFixed(0))),
    case: alone[row] ? empty : "some",
    who: names[row], whom: names[column],
    here: nan[row] ? "NaN" : weights[at],
    why: cut[at] ? ", cut" : may[at] ? "" : ", masked",
    most: names[own.indexOf(largest)],
    n: own.filter((a) => a > 0).length,
    edges: left.filter(Boolean).length,
  };
};
