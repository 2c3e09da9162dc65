attnbookFigures.compute.value_pulls = (settings, data, { dot, sum }) => {
  const three = [1, 2, 3];
  const values = three.map((j) => [settings["x" + j], settings["y" + j]]);
  const powers = three.map((j) => settings["e" + j]), total = sum(powers);
  const weights = powers.map((p) => p / total);
  const turn = (settings.angle * Math.PI) / 180, wanted = [Math.cos(turn), Math.sin(turn)];
  const average = [0, 1].map((i) => dot(weights, values.map((v) => v[i])));
  const along = values.map((v) => dot(v, wanted)), mean = dot(average, wanted);
  const clean = (x) => (Math.abs(x) < 1e-9 ? 0 : x);
  const ahead = along.map((x) => clean(x - mean));
  const pushes = weights.map((a, j) => clean(a * (along[j] - dot(weights, along))));
  const rises = pushes.map((push) => push > 0);
  return {
    weights, average, along, ahead, values, pushes, rises,
    radii: weights.map((a) => 6 + 10 * Math.sqrt(a)),
    tip: average.map((o, i) => o + 1.3 * wanted[i]),
    tilt: 90 - settings.angle,
    feet: values.map((v, j) => v.map((x, i) => x - ahead[j] * wanted[i])),
    drawn: pushes.map((push) => Math.max(-0.62, Math.min(0.62, push))),
    moves: pushes.map((push, j) => (rises[j] ? "rises" : push < 0 ? "falls" : "stays")),
    which: three.filter((j, i) => rises[i]).join(" and ") || "none",
  };
};
