attnbookFigures.compute.dead_row = ({ push }, { products }, { softmax }) => {
  const row = (name, divisor) => {
    const given = products.map((x) => x / divisor), before = softmax(given);
    const logits = given.map((x, j) => (j === 1 ? x + push : x));
    const jacobian = before.flatMap((a, i) => before.map((b, j) => (i === j ? a : 0) - a * b));
    return { [`${name}_logits`]: logits, [`${name}_before`]: before, [`${name}_after`]: softmax(logits),
      [`${name}_norm`]: Math.hypot(...jacobian) };
  };
  return { ...row("plain", 1), ...row("divided", 32) };
};
