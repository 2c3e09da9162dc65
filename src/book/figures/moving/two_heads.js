attnbookFigures.compute.two_heads = ({ text, one, two }, data, { bare, dot, softmax }) => {
  const { words, row, cat, logits, offers } = data[text];
  const weights = logits.map((own, h) => softmax(own.map((x, j) => x + (j === cat ? [one, two][h] : 0))));
  const adds = weights.map((own, h) => row.map((_, c) => dot(own, offers[h].map((all) => all[c]))));
  return { words, row, weights, written: weights.map((own) => own.map(bare)), adds, now: row.map((x, c) => x + adds[0][c] + adds[1][c]), case: text };
};
