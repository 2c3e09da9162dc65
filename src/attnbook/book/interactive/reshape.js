attnbookFigures.compute.reshape = ({ split, merge, row, column }, data, { range }) => {
  const four = range(4), two = range(2);
  const split_wrong = +(split === "wrong"), merge_wrong = +(merge === "wrong");
  const heads = two.map((h) => four.map((p) => two.map((j) => {
    const at = j + (split_wrong ? 8 * h + 2 * p : 4 * p + 2 * h);
    return 10 * (at >> 2) + at % 4;
  })));
  const rows = four.map((i) => two.map((k) => (merge_wrong ? [i >> 1, 2 * (i % 2) + k] : [k, i])));
  const reach = rows.map((made) => two.map((h) => four.map((p) => made.some(([g, q]) => g === h && p <= q))));
  const used = reach.map((to) => heads.flatMap((head, h) => head.filter((_, p) => to[h][p]).flat()));
  const kind = used.map((names, i) => four.map((j) =>
    (j > i ? [0, 2] : [3, 1])[+names.some((n) => n - n % 10 === 10 * j)]));
  const count = (k) => kind.flat().filter((each) => each === k).length;
  return {
    ...data, heads, kind, split_wrong, merge_wrong,
    merged: rows.map((made) => made.flatMap(([h, p]) => heads[h][p])),
    second: heads.map((head) => head.map(([n]) => n % 10 > 1)),
    merged_second: rows.map((made) => made.map(([h, p]) => heads[h][p][0] % 10 > 1)),
    reached: reach[row],
    used: four.map((t) => four.map((c) => used[row].includes(10 * t + c))),
    leaks: count(2), lost: count(3),
    verdict: data.verdicts[kind[row][column]],
    case: split_wrong + 2 * merge_wrong,
  };
};
