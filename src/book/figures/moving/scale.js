attnbookFigures.compute.scale = ({ d_k }, { products }, { softmax, sum }) => {
  const root = Math.sqrt(d_k), found = { root };
  for (const [name, divisor] of [["plain", 1], ["divided", root]]) {
    const logits = products[d_k].map((x) => x / divisor);
    const shares = softmax(logits).sort((a, b) => b - a);
    let end = 0;
    Object.assign(found, {
      [`${name}_logits`]: logits,
      [`${name}_shares`]: shares,
      [`${name}_starts`]: shares.map((share) => { end += share; return end - share; }),
      [`${name}_top`]: Math.max(...logits),
      [`${name}_largest`]: shares[0],
      [`${name}_size`]: Math.sqrt(sum(logits.map((x) => x * x)) / logits.length),
    });
  }
  return found;
};
