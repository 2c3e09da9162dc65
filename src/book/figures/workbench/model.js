// What model.py computes, forward and backward, in plain lists of rows.
(() => {
  const map = (m, f) => m.map((row, i) => row.map((x, j) => f(x, i, j)));
  const zeros = (like) => map(like, () => 0);
  const transposed = (m) => m[0].map((_, j) => m.map((row) => row[j]));
  const times = (a, b) => a.map((row) => b[0].map((_, j) => row.reduce((sum, x, k) => sum + x * b[k][j], 0)));
  const plus = (a, b) => map(a, (x, i, j) => x + b[i][j]);
  const softmax = (row) => {
    const top = Math.max(...row), powers = row.map((x) => Math.exp(x - top));
    const sum = powers.reduce((a, b) => a + b);
    return powers.map((x) => x / sum);
  };

  const mean = (row) => row.reduce((a, b) => a + b) / row.length;
  const spread = (row) => Math.sqrt(mean(row.map((x) => (x - mean(row)) ** 2)) + 1e-5);
  const normed = (m) => m.map((row) => row.map((x) => (x - mean(row)) / spread(row)));
  // A row turned by as many quarters as words stand before it, (a, c) -> (-c, a), and back.
  const quarter = ([a, b, c, d], times) => (times ? quarter([-c, b, a, d], times - 1) : [a, b, c, d]);
  const back = (row, i) => quarter(row, 4 - i);

  // The stored numbers as the switches have them.
  const stored = ({ stored: own, identity, same }) => {
    const eye = identity && map(own.W_Q, (_, i, j) => Number(i === j));
    const n = { ...own, ...(identity && { W_Q: eye, W_K: eye, W_V: eye }) };
    return same ? { ...n, W_K: n.W_Q } : n;
  };
  const factors = (settings) => ({
    row: settings.rooted ? Math.sqrt(settings.stored.E[0].length) : 1,
    logit: settings.scaled ? 1 / Math.sqrt(settings.stored.W_Q[0].length) : 1,
  });
  const following = ({ ids, aim }) => [...ids.slice(1), aim];
  // Word -> its share in the loss.
  const shares = ({ ids, every }) => ids.map((_, i) => (every ? 1 / ids.length : Number(i === ids.length - 1)));

  const forward = (settings) => {
    const n = stored(settings), by = factors(settings), next = following(settings);
    const keep = (name, computed) => {
      n[name] = map(computed, (x, i, j) => settings.pinned[`${name},${i},${j}`] ?? x);
      return n[name];
    };
    const read = (name) => settings.normed ? keep(`N${name}`, normed(n[name])) : n[name];
    keep("X", settings.ids.map((id) => n.E[id].map((x) => x * by.row)));
    n.read = read("X");
    for (const name of "QKV") {
      const rows = times(n.read, n[`W_${name}`]);
      keep(name, settings.turned && name !== "V" ? rows.map(quarter) : rows);
    }
    keep("S", map(times(n.Q, transposed(n.K)), (x) => x * by.logit));
    n.softmax = n.S.map((row, i) =>  // as it is before a number is pinned
      settings.edges[i].includes(true) ? softmax(row.map((x, j) => (settings.edges[i][j] ? x : -Infinity)))
        : row.map(() => 0));
    keep("A", n.softmax);
    keep("D", times(keep("O", times(n.A, n.V)), n.W_O));
    keep("Y", plus(n.X, n.D));
    n.before = map(times(read("Y"), n.W_1), (x) => x + n.b[0][0]);
    keep("H", map(n.before, (x) => Math.max(0, x)));
    keep("Z", plus(n.Y, keep("F", times(n.H, n.W_2))));
    keep("L", times(read("Z"), n.U));
    n.probabilities = n.L.map(softmax);
    n.losses = n.probabilities.map((row, i) => -Math.log(row[next[i]]));
    n.loss = shares(settings).reduce((sum, share, i) => sum + share * n.losses[i], 0);
    return n;
  };

  // By how much the loss rises where a number rises; what is pinned hangs on nothing.
  const backward = (settings) => {
    const n = forward(settings), by = factors(settings), next = following(settings), g = {};
    const share = shares(settings);
    // A number's gradient, and the part that goes on to what it was computed from.
    const pass = (name, gradient) => {
      g[name] = gradient;
      return map(gradient, (x, i, j) => (`${name},${i},${j}` in settings.pinned ? 0 : x));
    };
    // Of a product: to its left side; its right side, a stored matrix, adds up what it gets.
    const through = (gradient, left, name) => {
      const own = times(transposed(n[left]), gradient);
      g[name] = g[name] ? plus(g[name], own) : own;
      return times(gradient, transposed(n[name]));
    };
    // Back to a row of the stream from the normed copy that is read.
    const unread = (name, gradient) => {
      if (!settings.normed) return gradient;
      return pass(`N${name}`, gradient).map((row, i) => {
        const x = n[`N${name}`][i], middle = mean(row), along = mean(row.map((g, j) => g * x[j]));
        return row.map((g, j) => (g - middle - x[j] * along) / spread(n[name][i]));
      });
    };
    const of = (name) => (settings.normed ? `N${name}` : name);
    const dL = pass("L", map(n.probabilities, (p, i, j) => share[i] * (p - (j === next[i]))));
    const dZ = pass("Z", unread("Z", through(dL, of("Z"), "U")));
    const dH = pass("H", through(pass("F", dZ), "H", "W_2"));
    const dUnit = map(dH, (x, i, j) => (n.before[i][j] > 0 ? x : 0));
    g.b = [[dUnit.flat().reduce((a, b) => a + b)]];
    const dY = pass("Y", plus(dZ, unread("Y", through(dUnit, of("Y"), "W_1"))));
    const dO = pass("O", through(pass("D", dY), "O", "W_O"));
    const dA = pass("A", times(dO, transposed(n.V)));
    const dS = pass("S", n.softmax.map((row, i) => {
      const mean = row.reduce((sum, a, j) => sum + a * dA[i][j], 0);
      return row.map((a, j) => a * (dA[i][j] - mean));
    }));
    const scaled = map(dS, (x) => x * by.logit);
    const d = { Q: times(scaled, n.K), K: times(transposed(scaled), n.Q), V: times(transposed(n.A), dO) };
    let dRead = zeros(n.X);
    for (const name of "QKV") {
      const to = settings.same && name === "K" ? "W_Q" : `W_${name}`, own = pass(name, d[name]);
      dRead = plus(dRead, through(settings.turned && name !== "V" ? own.map(back) : own, of("X"), to));
    }
    if (settings.same) g.W_K = g.W_Q;
    const dX = pass("X", plus(dY, unread("X", dRead)));
    g.E = zeros(n.E);
    settings.ids.forEach((id, i) => dX[i].forEach((x, j) => { g.E[id][j] += x * by.row; }));
    return g;
  };

  window.attnbookBench = { forward, backward };
})();
