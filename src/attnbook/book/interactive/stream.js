attnbookFigures.compute.stream = ({ n, start, scheme }, data, { range, sum }) => {
  const kinds = Object.keys(data.names);
  const runs = kinds.map((kind) => {
    let [attention, forward] = data.gains[start], v = 1, c = 0;
    if (kind === "output") attention /= n;
    if (kind === "both") [attention, forward] = [attention / (2 * n), forward / (2 * n)];
    const vs = [1], cs = [0];
    for (const part of range(2 * n)) {
      const rho = Math.min(c / v, 1);
      const [dv, dc] = part % 2
        ? [forward / 2, (forward * (Math.sqrt(1 - rho ** 2) + rho * (Math.PI - Math.acos(rho)))) / (2 * Math.PI)]
        : data.overlaps[start].map((row) =>
            attention * (rho + (1 - rho) * sum(row.map((a, k) => a * (1 - rho) ** (k / 2)))));
      v += dv;
      c += dc;
      if (kind === "post") [v, c] = [1, c / v];
      if (part % 2) vs.push(v), cs.push(c / v);
    }
    return [vs, cs];
  });
  const each = (draw) => kinds.map((kind, i) =>
    data.measured[start][kind].map((row) => row.map((x, j) => draw(x, i, data.depths[j]))));
  const ends = runs.map((run) => run.map((row) => row[n]));
  const mine = kinds.indexOf(scheme), [variance, cosine] = ends[mine];
  const seen = each((x, i, depth) => x !== null && (i % 3 ? depth === n : depth <= n));
  return {
    runs, ends, variance, cosine,
    dots: each((x) => x ?? 0),
    seen,
    chosen: kinds.map((kind) => kind === scheme),
    name: data.names[scheme],
    measured_48: data.measured.glorot.output[0][5],
    case: seen[mine].flat().some(Boolean) ? "dots" : "lines",
  };
};
