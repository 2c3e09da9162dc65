attnbookFigures.compute.stream = ({ n, norm, factor }, { measured }, { range }) => {
  const { variance, cosine } = measured[norm][factor][n];
  const ends = [1, ...variance.map(Math.sqrt), 0], cosines = [0, ...cosine];
  const places = range(49).map((i) => i / 48), spread = places.map((place, i) => {
    const at = Math.floor(i * n / 48), on = i * n / 48 - at;
    return ends[at] + on * (ends[at + 1] - ends[at]);
  });
  const down = cosines.map((c) => (Math.acos(Math.min(c, 1)) * 90) / Math.PI);
  return {
    cosines, down,
    edge: [...spread, ...spread.map((s) => -s).reverse()],
    across: [...places, ...[...places].reverse()],
    gap: 416 / n - 1,
    variance: variance[n - 1],
    longer: spread[48],
    up: down.map((a) => -a),
    cosine: cosines[2],
  };
};
