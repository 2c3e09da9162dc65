attnbookFigures.compute.identity = ({ qx, qy, kind }, { fixed, matrices }, { dot, softmax }) => {
  const [w_q, w_k, back] = matrices[kind];
  const times = ([x, y], [first, second]) => first.map((w, i) => x * w + y * second[i]);
  const x = [times([qx, qy], back), ...fixed];
  const query = x.map((at) => times(at, w_q)), key = x.map((at) => times(at, w_k));
  const S = query.map((q) => key.map((k) => dot(q, k) / Math.SQRT2));
  const A = S.map((row) => softmax(row));
  const rank = A[0].map((w, j) => A[0].filter((v, i) => v > w || (v === w && i < j)).length);
  return { x, query, key, S, A, rank, apart: kind === "two", case: kind };
};
