attnbookFigures.compute.identity = ({ ax, ay, bx, by, kind }, { fixed, matrices }, { dot, softmax, sum }) => {
  const x = [[ax, ay], [bx, by], ...fixed];
  const [query, key] = matrices[kind].map(([first, second]) =>
    x.map(([across, up]) => first.map((w, i) => across * w + up * second[i])));
  const S = query.map((q) => key.map((k) => dot(q, k) / Math.SQRT2));
  const selves = S.map((row, i) => row.every((s, j) => j === i || s < row[i]));
  return {
    x, query, key, S,
    A: S.map((row) => softmax(row)),
    n_selves: sum(selves.map(Number)),
    case: kind,
  };
};
