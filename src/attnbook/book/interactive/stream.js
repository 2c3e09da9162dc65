attnbookFigures.compute.stream = ({ n, norm, factor }, { measured }, { range }) => {
  const { variance, cosine } = measured[norm][factor][n];
  const spread = [1, ...variance.map(Math.sqrt)], cosines = [0, ...cosine];
  const places = range(n + 1).map((i) => i / n);
  const down = cosines.map((c) => (Math.acos(Math.min(c, 1)) * 90) / Math.PI);
  return {
    cosines, down,
    edge: [...spread, ...spread.map((s) => -s).reverse()],
    across: [...places, ...[...places].reverse()],
    gap: 416 / n - 1,
    variance: variance[n - 1],
    longer: spread[n],
    up: down.map((a) => -a),
    cosine: cosines[2],
  };
};
