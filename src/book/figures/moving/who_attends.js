attnbookFigures.compute.who_attends = (settings, { powers, names }, { bare, range, sum, softmax }) => {
  const { mask, empty, cut, row, column } = settings, at = 6 * row + column;
  const cells = (f) => range(36).map((k) => f(k, k / 6 | 0, k % 6));
  const may = cells((k, i, j) => ({
    none: true, causal: j <= i, window: j === i || j === i - 1, padding: j < 4, both: i < 4 && j < 4,
  })[mask]);
  const off = cells((k) => may[k] && cut[k]), left = cells((k) => may[k] && !cut[k]);
  const rows = range(6).map((i) => left.slice(6 * i, 6 * i + 6)), alone = rows.map((own) => !own.includes(true));
  const tables = rows.map((own, i) => (alone[i] ? own.map(() => (empty === "mean" ? 1 / 6 : 0))
    : softmax(own.map((on, j) => (on ? Math.log(powers[i][j]) : -Infinity)))));
  const nan = alone.map((none) => none && empty === "nan");
  const weights = tables.flat(), edge = weights.map((a) => a > 0), largest = Math.max(...tables[row]);
  if (mask === "padding" || mask === "both") names = [...names.slice(0, 4), "pad", "pad"];
  return {
    names, weights, written: weights.map(bare), edge, nan, largest,
    lit: cells((k, i) => edge[k] && i === row),
    gone: cells((k, i) => !may[k] && !nan[i]),
    crossed: cells((k, i) => off[k] && !nan[i]),
    mine: alone.map((_, i) => i === row),
    sums: tables.map((each, i) => (nan[i] ? "NaN" : sum(each).toFixed(0))),
    idle: { empty: !alone.includes(true) }, case: alone[row] ? empty : "some",
    who: names[row], whom: names[column],
    here: nan[row] ? "NaN" : weights[at],
    why: off[at] ? ", cut. Click or Enter puts it back"
      : may[at] ? ". Click or Enter removes this edge" : ", masked",
    most: names[tables[row].indexOf(largest)],
    n: sum(tables[row].map((a) => a > 0)),
    edges: sum(edge), n_cut: sum(off), fixed: may.map((on) => !on),
  };
};
