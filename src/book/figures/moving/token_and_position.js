attnbookFigures.compute.token_and_position = ({ word, position, entry, scaled }, { words, v }, { range }) => {
  const size = entry * (scaled ? Math.sqrt(512) : 1), share = size ** 2 / (size ** 2 + v);
  const other = word === "dog" ? "cat" : "dog", further = position + 6;
  const place = (p, i) => Math[i % 2 ? "cos" : "sin"](p / 1e4 ** ((i >> 1) / 256));
  const sum = (w, p) => words[w].map((x, i) => size * x + place(p, i));
  const rows = [words[word].map((x) => size * x), words[word].map((_, i) => place(position, i)),
    sum(word, position), sum(other, position), sum(word, further)];
  return {
    other, further, size, share,
    case: [0.1, 0.3, 0.9, 0.98].filter((most) => share >= most).length,
    heights: rows.map((row) => row.map((x) => Math.max(-1, Math.min(1, x / 2))).flatMap((x) => [0, x, x, 0])),
    across: range(24).flatMap((i) => [0.1, 0.1, 0.9, 0.9].map((x) => i + x)),
  };
};
