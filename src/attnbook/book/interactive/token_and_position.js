attnbookFigures.compute.token_and_position = ({ entry, scaled }, { words, positions, v }, { range }) => {
  const size = entry * (scaled ? Math.sqrt(512) : 1), share = size ** 2 / (size ** 2 + v);
  const sum = (w, p) => positions[p].map((x, i) => x + size * words[w][i]);
  const rows = [words[0].map((x) => size * x), positions[0], sum(0, 0), sum(1, 0), sum(0, 1)];
  return {
    size, share,
    case: [0.1, 0.3, 0.9, 0.98].filter((most) => share >= most).length,
    heights: rows.map((row) => row.map((x) => Math.max(-1, Math.min(1, x / 2))).flatMap((x) => [0, x, x, 0])),
    across: range(24).flatMap((i) => [0.1, 0.1, 0.9, 0.9].map((x) => i + x)),
  };
};
