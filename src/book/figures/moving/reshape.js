attnbookFigures.compute.reshape = ({ split, merge, row, column }, data, { range }) => {
  const split_wrong = +split, merge_wrong = +merge, all = range(16);
  // The number at each place of the heads, and the place that each place of the outputs is taken from.
  const heads = all.map((i) => (split_wrong ? i : 4 * (i % 8 >> 1) + 2 * (i >> 3) + i % 2));
  const from = all.map((i) => (merge_wrong ? i : 8 * (i % 4 >> 1) + 2 * (i >> 2) + i % 2));
  const reaching = range(4).map((i) => all.filter((at) => from.slice(4 * i, 4 * i + 4)
    .some((to) => to >> 3 === at >> 3 && at >> 1 <= to >> 1)).map((at) => heads[at]));
  const kind = reaching.map((numbers, i) => range(4).map((j) =>
    (j > i ? [0, 2] : [3, 1])[+numbers.some((n) => n >> 2 === j)]));
  const in_heads = all.map((n) => heads.indexOf(n)), in_outputs = in_heads.map((at) => from.indexOf(at));
  const count = (k) => kind.flat().filter((each) => each === k).length;
  return {
    ...data, kind, split_wrong, merge_wrong,
    heads: heads.map((n) => n + 6 * (n >> 2)),
    heads_x: in_heads.map((at) => 156 + 66 * (at >> 3) + 26 * (at % 2)),
    heads_y: in_heads.map((at) => 30 + 22 * (at % 8 >> 1)),
    outputs_x: in_outputs.map((at) => 324 + 26 * (at % 4)),
    outputs_y: in_outputs.map((at) => 30 + 22 * (at >> 2)),
    used: all.map((n) => reaching[row].includes(n)),
    leaks: count(2), lost: count(3),
    verdict: data.verdicts[kind[row][column]],
    case: split_wrong + 2 * merge_wrong,
  };
};
