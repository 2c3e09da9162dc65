// The bench in the page: what hangs on its numbers is drawn again, and every number can be changed.
(() => {
  const { forward, backward } = window.attnbookBench;
  const WORDS = ["the", "cat", "sat", "down"];
  const three = [0, 1, 2], TOP = 226, LANE = 111, CELL = 28, ROW = 20;
  const LOW = { X: 6, Y: 6, Z: 6, Q: 32, S: 32, A: 32, K: 52, V: 80, O: 80, D: 80, H: 80, F: 80 };
  const STORED = ["E", "W_Q", "W_K", "W_V", "W_O", "W_1", "b", "W_2", "U"];
  const COMPUTED = ["X", "Q", "K", "V", "S", "A", "O", "D", "H", "F", "Y", "Z"];
  const KIND = { Q: "query", W_Q: "query", K: "key", W_K: "key", V: "value", W_V: "value", O: "value", S: "weight", A: "weight" };
  const at = (name, lane) => TOP + lane * LANE + LOW[name];

  // ---------- how numbers look: the same as in picture.py ----------
  const round = (x, places) => {
    const text = x.toFixed(places);
    return +text ? text : text.replace("-", "");
  };
  const formatted = (x) => {
    const size = Math.abs(x);
    if (size < 0.005) return "0";
    const text = size >= 9.95 ? round(x, 0) : round(x, 2).replace(/\.?0+$/, "");
    return (size < 0.995 ? text.replace("0.", ".") : text).replace("-", "−");
  };
  const tint = (name, x, gradient) => {
    const size = Math.abs(x);
    if (size < 0.005) return 0;
    if (name === "A" && !gradient) return size <= 0.55 ? 0.06 + 0.58 * size : 0.66 + 0.53 * (Math.min(1, size) - 0.55);
    return 0.13 + 0.28 * Math.min(1, size / (gradient ? 0.3 : 2));
  };
  // To what is computed in a lane: whose gradient comes back, a path, its head on and back.
  const branches = (i) => {
    const [stream, query, key, value] = [..."XQKV"].map((name) => at(name, i) + ROW / 2);
    const right = "m-5 -4l5 4l-5 4", up = (x) => `M${x - 4} ${stream + 7}l4 -5l4 5`;
    const level = (of, x, y, wide) => [of, `M${x} ${y}h${wide}`, right, `M${x + 5} ${y - 4}l-5 4l5 4`];
    return {
      Q: ["Q", `M224 ${query}h10`, "", ""],
      K: ["K", `M224 ${key}h10`, "", ""],
      V: ["QKV", `M224 ${stream}V${value - 6}q0 6 6 6h4`, "", up(224)],
      H: ["H", `M992 ${stream}V${value - 8}q0 8 8 8h7`, right, up(992)],
      A: level("S", 484, query, 17), D: level("O", 812, value, 25), F: level("H", 1043, value, 17),
    };
  };
  // Where a query or key points, in its columns 1 and 3, and how far its place turned it.
  const hand = (settings, n, name, i) => {
    const [east, , north] = n[name][i], size = Math.hypot(east, north);
    const end = size < 0.005 ? [0, 0] : [8 * east / size, 8 * north / size];
    let begin = end;
    for (let k = settings.turned ? i : 0; k; k--) begin = [begin[1], -begin[0]];
    const x = 380, y = at(name, i) + ROW / 2;
    const [from, to] = [begin, end].map(([a, b]) => `${round(x + a, 1)} ${round(y - b, 1)}`);
    const opacity = String(+(settings.turned || settings.asks[0] === "east"));
    return {
      [`dial,${name},${i}`]: { opacity },
      [`turn,${name},${i}`]: { d: `M${x} ${y}L${from}A8 8 0 0 0 ${to}z`, opacity },
      [`hand,${name},${i}`]: { d: `M${x} ${y}L${to}`, opacity },
    };
  };
  const look = (settings, back, lane) => {
    const n = forward(settings), shown = back ? { ...n, ...backward(settings) } : n, found = {};
    for (const name of [...STORED, ...COMPUTED]) {
      shown[name].forEach((row, i) => row.forEach((x, j) => {
        const key = `${name},${i},${j}`;
        if ("SA".includes(name) && !settings.edges[i][j]) {
          found[key] = { text: "", tint: "0", class: "cell weight closed" };
          return;
        }
        const strength = tint(name, x, back);
        const names = ["cell", KIND[name] ?? "stream", !strength && "zero",
          name === "A" && !back && strength > 0.5 && "inverted", key in settings.pinned && "pinned", back && "gradient",
          formatted(x).length > 3 && "long"];
        const text = formatted(x).length > 4 ? round(x, 1).replace("-", "−") : formatted(x);  // as much as has room
        found[key] = { text, tint: round(strength, 2), class: names.filter(Boolean).join(" ") };
      }));
    }
    // Where a gradient comes back, a road is red.
    const red = (names, i, j) => {
      if (!back) return "";
      const passed = [...names].flatMap((name) => (j === undefined ? shown[name][i] : [shown[name][i][j]]));
      return passed.some((x) => Math.abs(x) >= 0.005) ? " red" : "";
    };
    const short = { article: "art.", "noun seen": "seen" }, four = settings.columns.slice(0, 4);
    for (const [name, columns] of [["X", settings.columns], ["Y", settings.columns], ["Z", settings.columns],
      ["Q", settings.asks], ["O", four]]) {
      columns.forEach((text, j) => { found[`over,${name},${j}`] = { text }; });
    }
    settings.columns.forEach((text, j) => {
      found[`beside,W_Q,${j}`] = { text: short[text] ?? text };
      found[`beside,W_1,${j}`] = { text };
    });
    four.forEach((text, j) => { found[`beside,W_O,${j}`] = { text }; });
    for (const i of three) for (const k of three) found[`norm,${i},${k}`] = { opacity: String(+settings.normed) };
    for (const j of three) {
      const open = settings.edges[lane][j], size = open ? Math.min(1, Math.abs(n.S[lane][j]) / 2) : 0;
      const x = 398 + CELL * j + CELL / 2, y = at("K", j) + ROW / 2, before = j < lane;
      found[`meet,${j}`] = {
        d: `M370 ${y}H${x - 6}Q${x} ${y} ${x} ${y + (before ? 6 : -6)}V${at("S", lane) + (before ? -1 : ROW + 1)}`,
        opacity: open ? round(0.3 + 0.7 * size, 2) : "0",
        class: `meet key${red("S", lane, j)}`,
      };
    }
    found.ask = { d: `M370 ${at("Q", lane) + ROW / 2}H396`, class: `meet query${red("Q", lane)}` };
    for (const i of three) {
      let down = at("O", i) + 1;
      for (const j of three) {
        const wide = (ROW - 2) * Math.max(0, Math.min(1, n.A[i][j]));
        const y1 = round(at("V", j) + ROW / 2, 1), y2 = round(down + wide / 2, 1);
        down += wide;
        found[`ribbon,${i},${j}`] = {
          d: `M596 ${y1}C646 ${y1} 646 ${y2} 694 ${y2}`,
          "stroke-width": round(wide, 2), class: `ribbon${i === lane ? " chosen" : ""}${red("A", i, j)}`,
        };
      }
      const lower = at("D", i) - 1, upper = at("Y", i) + ROW + 2;
      for (const name of "DF") {
        n[name][i].forEach((x, k) => {
          const middle = (name === "D" ? 842 : 1064) + CELL * k + CELL / 2, passed = red(name, i, k);
          found[`write,${name},${i},${k}`] = {
            d: passed ? `M${middle} ${upper}V${lower}m-4 -5l4 5l4 -5` : `M${middle} ${lower}V${upper}m-4 5l4 -5l4 5`,
            opacity: String(+(Math.abs(x) >= 0.005)), class: `write${passed}`,
          };
        });
      }
      const silent = n.H[i][0] <= 0;  // nothing passes back through the unit
      for (const [name, [of, path, ahead, comes]] of Object.entries(branches(i))) {
        const passed = name === "H" && silent ? "" : red(of, i);
        found[`branch,${name},${i}`] = { d: path + (passed ? comes : ahead), class: `branch${passed}` };
      }
      for (const name of "QK") Object.assign(found, hand(settings, n, name, i));
      for (const name of "XYZ") found[`flow,${name},${i}`] = { class: `stream-line${red(name, i)}` };
      found[`lane,${i}`] = { class: `lane${i === lane ? " chosen" : ""}` };
      const word = WORDS[settings.ids[i]];
      found[`word,${i}`] = { text: word };
      found[`id,${i}`] = { text: `id ${settings.ids[i]}` };
      for (const name of "SA") found[`head,${name},${i}`] = { text: word };
      n.probabilities[i].forEach((share, w) => {
        const big = i === 2 && w === settings.aim ? " aim" : "";
        found[`bar,${i},${w}`] = { width: round(1 + 93 * share, 1), class: `share-bar${big}` };
        found[`share,${i},${w}`] = { text: `${round(100 * share, 0)} %`, class: `share${big}` };
        found[`next,${i},${w}`] = { class: `next${big}` };
      });
    }
    found.loss = {
      text: settings.every ? `mean loss of all words: ${formatted(n.loss)} nats`
        : `loss of “${WORDS[settings.aim]}”: −ln ${formatted(n.probabilities[2][settings.aim])} = ${formatted(n.loss)} nats`,
    };
    return [found, n, shown];
  };

  // ---------- a number's sum, in its own numbers ----------
  const byTouch = matchMedia("(pointer: coarse)").matches;
  const PRODUCT = { Q: ["read", "W_Q"], K: ["read", "W_K"], V: ["read", "W_V"], O: ["A", "V"], D: ["O", "W_O"], F: ["H", "W_2"] };
  const LETTER = { O: "mix", D: "mix · W_O", F: "unit · W_2", H: "unit", X: "row", Y: "sum", Z: "sum", S: "logit", A: "weight" };
  // A matrix is named as in a formula.
  const named = (text) => text.replace(/\b([A-Z])_(\w)\b|\b[B-HJ-Zb]\b/g, (name, letter, index) => (
    `<i class="matrix">${letter ? `${letter}<sub>${index}</sub>` : name}</i>`));
  const columnOf = ({ columns, asks }, name, j) => {
    if (name === "U") return `“${WORDS[j]}”`;
    if (/^(W_1|b|H)$/.test(name)) return "unit";
    const own = (/^(Q|K|W_Q|W_K)$/.test(name) ? asks : columns)[j];
    return /^\d$/.test(own) ? `column ${own}` : own;
  };
  // Where a stored number stands: from what to what.
  const place = (settings, name, i, j) => {
    const from = name === "E" ? `“${WORDS[i]}”` : name === "W_2" ? "unit" : columnOf(settings, "X", i);
    return name === "b" ? "b" : `${name}, ${from} → ${columnOf(settings, name, j)}`;
  };
  Object.assign(window.attnbookBench, { look: (...state) => look(...state)[0], WORDS, formatted, columnOf, place, named });
  const dot = (left, right) => left.map((x, k) => `${formatted(x)}·${formatted(right[k])}`).join(" + ");
  // A stored matrix that a switch puts another one in place of.
  const replaced = ({ identity, same }, name) => (identity && /^W_[QKV]$/.test(name)) || (same && name === "W_K");
  // What a cell is made of: words, and the cells that light up.
  const sum = (settings, n, name, i, j) => {
    const word = (k) => `“${WORDS[settings.ids[k]]}”`, equal = ` = ${formatted(n[name][i][j])}`;
    const opens = byTouch ? "A tap opens it." : "Enter or a press opens it.";
    const column = (m) => n[m].map((row) => row[j]);
    if (STORED.includes(name)) {
      if (replaced(settings, name)) return [`${name}: ${settings.identity ? "the identity" : "the same numbers as W_Q"}, by the switch.`, []];
      return [`${place(settings, name, i, j)}: a stored number${equal}. ${byTouch ? "− and + change it." : "Drag it, or press ↑ or ↓."}`, []];
    }
    if (`${name},${i},${j}` in settings.pinned) return [`Set by hand${equal}. ${byTouch ? "Reset" : "Delete"} gives it back.`, []];
    if (name === "X") {
      const times = settings.rooted ? " × √5" : "";
      return [`${word(i)} is row ${settings.ids[i]} of E${times}; ${columnOf(settings, "X", j)}${equal}`, [`E,${settings.ids[i]},${j}`]];
    }
    if (name === "S") {
      if (!settings.edges[i][j]) return [`${word(i)} may not look at ${word(j)}. ${opens}`, []];
      const terms = dot(n.Q[i], n.K[j]), asks = `${word(i)} asks ${word(j)}: `;
      return [asks + (settings.scaled ? `(${terms}) / √4` : terms) + equal, n.Q[i].flatMap((_, k) => [`Q,${i},${k}`, `K,${j},${k}`])];
    }
    if (name === "A") {
      const open = three.filter((k) => settings.edges[i][k]), power = (k) => `e^${formatted(n.S[i][k])}`;
      if (!open.includes(j)) return [`${word(i)} may not look at ${word(j)}. ${opens}`, []];
      return [`Share of ${word(j)} for ${word(i)}: ${power(j)} / (${open.map(power).join(" + ")})${equal}. A ${byTouch ? "tap" : "press"} cuts it.`,
        open.map((k) => `S,${i},${k}`)];
    }
    if (name === "Y" || name === "Z") {
      const [had, brought] = name === "Y" ? ["X", "D"] : ["Y", "F"];
      return [`${word(i)}, ${columnOf(settings, name, j)}: it had ${formatted(n[had][i][j])} and gets ${formatted(n[brought][i][j])}${equal}`,
        [`${had},${i},${j}`, `${brought},${i},${j}`]];
    }
    if (name === "H") {
      const b = n.b[0][0], read = n.NY ?? n.Y;
      return [`Unit of ${word(i)}: relu(${dot(read[i], column("W_1"))} ${b < 0 ? "−" : "+"} ${formatted(Math.abs(b))})${equal}`,
        [...n.Y[i].map((_, k) => `Y,${i},${k}`), ...n.W_1.map((_, k) => `W_1,${k},0`), "b,0,0"]];
    }
    const [left, right] = PRODUCT[name], from = left === "read" ? "X" : left;
    const lit = [...n[left][i].map((_, k) => `${from},${i},${k}`), ...n[right].map((_, k) => `${right},${k},${j}`)];
    const whose = `${LETTER[name] ?? name.toLowerCase()} of ${word(i)}, ${columnOf(settings, name, j)}: `;
    if (settings.turned && i && /^[QK]$/.test(name)) {
      return [`${whose}row times ${right}, turned by ${["a quarter", "two quarters"][i - 1]} for its place${equal}`, lit];
    }
    return [`${whose}${dot(n[left][i], column(right))}${equal}`, lit];
  };

  const answer = (settings, n, i, w) => {
    const power = (x) => `e^${formatted(x)}`, row = n.L[i];
    return `“${WORDS[w]}” after “${WORDS[settings.ids[i]]}”: its logit is ${dot((n.NZ ?? n.Z)[i], n.U.map((u) => u[w]))} = `
      + `${formatted(row[w])}; ${power(row[w])} / (${row.map(power).join(" + ")}) = ${formatted(n.probabilities[i][w])}`;
  };

  // ---------- the element ----------
  // Each of these puts other matrices in place of some: one at a time.
  const OTHERS = ["identity", "same", "place", "trained"];
  // The stage where a switch acts.
  const WHERE = { scaled: 2, mask: 2, identity: 1, same: 1, rooted: 0, normed: 1, place: 1, turned: 1, trained: 0, every: 7 };
  const SENTENCES = [
    "Each word picks its row of the table E. The columns say what the word is.",
    "Each row makes three: a query, what the word looks for; a key, what it is found by; a value, what it hands over.",
    "Each query meets each key. “sat” looks for a noun, and “cat” is one: 2 · 2, divided by √4. "
      + "Hatched: no word sees what comes after it.",
    "Each row of logits becomes shares that are positive and sum to one.",
    "Each word takes its share of every value. What “sat” receives is mostly noun.",
    "W_O writes it into a free column, and the row keeps what it had: a verb, and a noun seen.",
    "One unit asks: a verb, and a noun seen? If so, it writes “down”.",
    "The last row becomes probabilities. The loss is −ln of what the word that came had.",
  ];
  const enhance = (box) => {
    const needs = JSON.parse(box.querySelector("script[type='application/json']").textContent);
    const svg = box.querySelector("svg"), line = box.querySelectorAll(".bench-line span")[+byTouch];
    const copy = () => structuredClone(needs), resting = line.textContent;
    line.parentNode.replaceChildren(line);
    const other = (set) => ({ ...copy(), ...copy().sets[set], set });
    let settings = other(needs.set), back = needs.back, lane = 2, reached = 0, last, chosen, found, n, shown;
    const marks = new Map([...svg.querySelectorAll("[data-key]")].map((part) => [part.dataset.key, part]));
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const matrices = [...STORED, ...COMPUTED];
    // How sure the model is of the word that came; as the page begins, and now.
    const certain = ({ probabilities }) => `${round(100 * probabilities[2][settings.aim], 0)} %`;
    let opening, began;
    const begin = () => { [opening, began] = [JSON.stringify(settings), forward(settings)]; };
    begin();
    const isCell = (key) => matrices.includes(key.split(",")[0]);
    const at3 = (key) => { const [name, i, j] = key.split(","); return [name, +i, +j]; };

    const say = (text) => {
      line.parentNode.hidden = false;
      box.querySelectorAll(".bench-evidence li").forEach((item) => item.classList.remove("shown"));
      if (line.innerHTML !== named(text)) line.innerHTML = named(text);
    };
    const departs = (name) => {
      if (name !== "mask" && name !== "cut") {
        return settings.set === name || (settings[name] !== needs[name] && !(name === "turned" && settings.set));
      }
      const ahead = name === "mask";
      return settings.edges.some((row, i) => row.some((open, j) => open === ahead && j > i === ahead));
    };
    // At rest: what the last switch does here, and what was measured of models trained so.
    const idle = () => {
      const nameOf = (item) => item.classList[0].replace("bench-", "");
      const all = [...box.querySelectorAll(".bench-evidence li")].filter((item) => departs(nameOf(item)));
      const changed = back ? undefined : all.find((item) => nameOf(item) === last) ?? all[0];
      say(back ? "Red, from right to left: raise a number a little, and the loss rises that many times as much; with a −, it falls."
        : resting);
      if (!changed) return;
      changed.classList.add("shown");
      line.parentNode.hidden = true;
      const moved = changed.querySelector(".bench-moved"), [from, to] = [began, n].map(certain);
      moved.textContent = JSON.stringify(settings) === opening ? ""
        : `“${WORDS[settings.aim]}”${from === to ? " stays at" : `: ${from} →`} ${to}. `;
    };
    const light = (key) => {
      svg.querySelectorAll(".lit, .asked").forEach((part) => part.classList.remove("lit", "asked"));
      document.querySelectorAll(".is-asked").forEach((part) => part.classList.remove("is-asked"));
      chosen = key;
      box.querySelector(".bench-step").hidden = !key;
      if (!key) { idle(); return; }
      const [name, i, j] = at3(key), [words, from] = sum(settings, n, name, i, j);
      marks.get(key).classList.add("asked");
      document.querySelectorAll(`.of-${name}`).forEach((part) => part.classList.add("is-asked"));
      from.forEach((part) => marks.get(part)?.classList.add("lit"));
      const slope = shown[name][i][j], size = formatted(Math.abs(slope));
      say(!back ? words : `This number is ${formatted(n[name][i][j])}. Raise it a little, and the loss `
        + `${size === "0" ? "does not change" : `${slope < 0 ? "falls" : "rises"} ${size} times as much`}.`);
    };
    const put = (part, name, value) => part.getAttribute(name) !== value && part.setAttribute(name, value);
    const draw = (first) => {
      const was = found;
      [found, n, shown] = look(settings, back, lane);
      for (const [key, says] of Object.entries(found)) {
        const part = marks.get(key);
        if (isCell(key)) {
          const [, fill, text] = part.children, [name, i, j] = at3(key);
          put(part, "class", says.class);
          put(fill, "fill-opacity", says.tint);
          if (text.textContent !== says.text || first) {
            text.textContent = says.text;
            part.setAttribute("aria-valuenow", +shown[name][i][j].toFixed(3));
            part.setAttribute("aria-valuetext", says.text || "closed");
            if (!first && !calm && was && !back) {
              part.animate([{ filter: "drop-shadow(0 0 4px var(--changed))" }, { filter: "none" }], 600);
            }
          }
        } else {
          for (const [attribute, value] of Object.entries(says)) {
            if (attribute === "text") {
              if (part.textContent !== value) part.textContent = value;
            }
            else put(part, attribute, value);
          }
        }
      }
      for (const button of box.querySelectorAll("button[name]")) {
        const on = { back, mask: !departs("mask") }[button.name] ?? settings[button.name] ?? settings.set === button.name;
        if (button.ariaPressed !== null) button.setAttribute("aria-pressed", on);
      }
      light(chosen);
      if (box.classList.contains("narrow")) move();
      tags.forEach((tag, i) => { tag.lastChild.textContent = WORDS[settings.ids[i]]; });
      box.dispatchEvent(new CustomEvent("bench", { detail: settings }));
    };

    // Change a number, an edge, a word.
    const value = (name, i, j) => (STORED.includes(name) ? settings.stored : n)[name][i][j];
    const fixed = (key) => key.startsWith("A,") || found[key].class.includes("closed");
    const stuck = (key) => fixed(key) || replaced(settings, at3(key)[0]);
    const set = (key, x) => {
      if (stuck(key)) return;
      const [name, i, j] = at3(key), to = Math.max(-9, Math.min(9, Math.round(x * 100) / 100));
      if (STORED.includes(name)) settings.stored[name][i][j] = to;
      else settings.pinned[key] = to;
      chosen = key;
      draw();
    };
    const restore = (key) => {
      const [name, i, j] = at3(key);
      if (STORED.includes(name)) settings.stored[name][i][j] = (needs.sets[settings.set] ?? needs).stored[name][i][j];
      delete settings.pinned[key];
      draw();
    };
    const nudge = (key, by) => set(key, value(...at3(key)) + by);
    const turn = (key) => {
      const [, i, j] = at3(key);
      settings.edges[i][j] = !settings.edges[i][j];
      last = "cut";
      draw();
    };
    const read = (i) => {
      if (lane === i) settings.ids[i] = (settings.ids[i] + 1) % 4;
      lane = i;
      draw();
    };

    // Cells: with the keyboard,
    const describe = () => [...marks].filter(([key]) => isCell(key)).forEach(([key, part]) => {
      const [name, i, j] = at3(key), own = STORED.includes(name);
      part.setAttribute("role", "spinbutton");
      part.setAttribute("tabindex", i || j ? -1 : 0);
      part.setAttribute("aria-label", own ? place(settings, name, i, j)
        : "SA".includes(name) ? `${LETTER[name]}: what word ${i + 1} gives word ${j + 1}`
          : `${LETTER[name] ?? name} of word ${i + 1}, ${columnOf(settings, name, j)}`);
    });
    let typed = "", stopped;
    svg.addEventListener("keydown", (event) => {
      const part = event.target.closest("[data-key], [data-word]"), key = part?.dataset.key;
      if (part?.dataset.word && (event.key === "Enter" || event.key === " ")) read(+part.dataset.word);
      else if (!key) return;
      else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
        nudge(key, (event.key === "ArrowUp" ? 1 : -1) * (event.shiftKey ? 0.1 : 0.5));
      } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        const all = [...part.parentNode.children], to = all.indexOf(part) + (event.key === "ArrowRight" ? 1 : -1);
        const next = all[(to + all.length) % all.length];
        part.setAttribute("tabindex", -1);
        next.setAttribute("tabindex", 0);
        next.focus();
      } else if (event.key === "Delete" || event.key === "Backspace") restore(key);
      else if (/^[0-9.-]$/.test(event.key)) {
        typed += event.key;
        if (Number.isFinite(parseFloat(typed))) set(key, parseFloat(typed));
        clearTimeout(stopped);
        stopped = setTimeout(() => { typed = ""; }, 900);
      } else if ((event.key === "Enter" || event.key === " ") && /^[SA],/.test(key)) turn(key);
      else if (event.key === "Enter") typed = "";
      else return;
      event.preventDefault();
    });
    svg.addEventListener("focusin", (event) => {
      const key = event.target.dataset.key;
      if (key) light(key);
    });
    // with a mouse, and by touch.
    let drag;
    const under = (event) => {
      const key = event.target.closest?.("[data-key]")?.dataset.key ?? "";
      if (isCell(key)) return key;
      if (event.pointerType === "touch" && !event.target.closest("[data-word]")) return nearest(event);
      return key.startsWith("ribbon") ? key.replace("ribbon", "A") : undefined;
    };
    // A finger is wider than a cell.
    const nearest = ({ clientX, clientY }) => {
      let best, least = 20;
      for (const [key, part] of marks) {
        if (!isCell(key)) continue;
        const { left, right, top, bottom } = part.getBoundingClientRect();
        const far = Math.hypot(Math.max(left - clientX, 0, clientX - right), Math.max(top - clientY, 0, clientY - bottom));
        if (far < least) [best, least] = [key, far];
      }
      return best;
    };
    // How the share of a next word is made, where one points at it or taps it.
    const explain = ({ target }) => {
      const [i, w] = target.closest("[data-answer]")?.dataset.answer.split(",") ?? [];
      if (!w) return false;
      say(answer(settings, n, +i, +w));
      for (const k of n.U.keys()) for (const key of [`Z,${i},${k}`, `U,${k},${w}`]) marks.get(key).classList.add("lit");
      return true;
    };
    svg.addEventListener("pointerover", (event) => {
      if (event.pointerType !== "mouse" || drag || playing) return;
      light(under(event));
      explain(event);
      if (event.target.closest("[data-word]")) say("Press a word to see whom it asks; press it again to change it.");
    });
    svg.addEventListener("pointerleave", ({ pointerType }) => {
      if (pointerType === "mouse" && !drag && !playing) light(svg.contains(document.activeElement) ? document.activeElement.dataset.key : undefined);
    });
    svg.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" && event.target.closest("[data-answer]")) {
        light();
        explain(event);
        return;
      }
      const key = under(event);
      if (!key) return;
      marks.get(key).focus({ preventScroll: true });
      light(key);
      drag = { key, y: event.clientY, from: value(...at3(key)), moved: false };
      if (event.pointerType === "mouse") {
        svg.setPointerCapture(event.pointerId);
        event.preventDefault();
      }
    });
    svg.addEventListener("pointermove", (event) => {
      if (!drag || event.pointerType !== "mouse") return;
      if (fixed(drag.key)) { drag.moved ||= Math.abs(drag.y - event.clientY) > 4; return; }
      const by = Math.round((drag.y - event.clientY) / 9) * (event.shiftKey ? 0.1 : 0.5);
      if (!by && !drag.moved) return;
      drag.moved = true;
      set(drag.key, drag.from + by);
    });
    svg.addEventListener("pointerup", () => {
      if (drag && !drag.moved && fixed(drag.key)) turn(drag.key);
      drag = undefined;
    });
    svg.addEventListener("pointercancel", () => { drag = undefined; });
    for (const part of svg.querySelectorAll("[data-word]")) {
      part.setAttribute("role", "button");
      part.setAttribute("tabindex", 0);
      part.setAttribute("aria-label", `Word ${+part.dataset.word + 1}: look at its row; again: change it`);
      part.addEventListener("click", () => read(+part.dataset.word));
    }

    // Switches.
    const reset = () => {
      [settings, back, lane, chosen, reached] = [other(needs.set), needs.back, 2, undefined, 0];
      draw();
    };
    const press = (name) => {
      last = name;
      if (name === "reset" || (name === "play" && !reached)) reset();
      else if (name === "back") back = !back;
      else if (name === "mask") {
        const ahead = !departs("mask");
        settings.edges = three.map((i) => three.map((j) => ahead || j <= i));
      } else if (OTHERS.includes(name)) {
        const on = settings[name] || settings.set === name;
        settings.identity = settings.same = false;
        if (name in needs.sets || settings.set) use();
        if (name in needs.sets) use(on ? undefined : name);
        else settings[name] = !on;
      } else settings[name] = !settings[name];
      chosen = undefined;
      draw();
      if (name in WHERE && box.classList.contains("narrow")) go(WHERE[name]);
      if (name === "play") play(reached);
    };
    const more = box.querySelector(".bench-more");
    if (more) document.addEventListener("click", ({ target }) => {
      if (!more.contains(target)) more.open = false;
    });
    more?.addEventListener("toggle", () => more.open && more.lastChild.scrollIntoView({ block: "nearest" }));
    box.querySelector(".bench-controls").addEventListener("click", ({ target }) => {
      const name = target.closest("button")?.name;
      if (name && !(name === "play" && halted)) press(name);
    });
    // Other numbers: the second head's, or those that training found.
    const use = (set) => {
      const { stored, columns, asks, turned } = copy();
      settings = { ...settings, pinned: {}, stored, columns, asks, turned, ...copy().sets[set], set };
    };
    for (const button of box.querySelectorAll(".bench-step button")) {
      button.addEventListener("click", () => {
        if (fixed(chosen)) turn(chosen);
        else nudge(chosen, +button.value);
      });
    }

    // From left to right, a sentence a stage; the finished picture is there before and after, and in
    // a pause, after which it goes on with the stage that it had reached.
    let playing, halted = false;
    const player = box.querySelector("[name=play]");
    const stop = () => {
      clearTimeout(playing);
      playing = undefined;
      player.textContent = "▶ Play";
      svg.querySelectorAll(".later").forEach((part) => part.classList.remove("later"));
    };
    const play = (k) => {
      reached = k;
      if (k === SENTENCES.length) { reached = 0; stop(); idle(); return; }
      svg.querySelectorAll("[data-stage]").forEach((part) => part.classList.toggle("later", +part.dataset.stage > k));
      box.classList.remove("stored");
      if (box.classList.contains("narrow")) go(k);
      player.textContent = "❚❚ Pause";
      say(SENTENCES[k]);
      playing = setTimeout(play, Math.max(3000, 45 * SENTENCES[k].length), k + 1);
    };
    for (const kind of ["pointerdown", "keydown"]) {
      box.addEventListener(kind, ({ target }) => {
        halted = Boolean(playing) && target === player;
        if (playing) stop();
      });
    }

    // On a first visit it plays by itself, where it is seen and nobody is quicker; any touch ends that.
    const show = () => {
      let visited = true;
      try {
        visited = localStorage.getItem("played");
        localStorage.setItem("played", "yes");
      } catch { /* then each visit is a later one */ }
      if (!needs.shows || calm || visited) return;
      const live = line.parentNode, kinds = ["pointerdown", "keydown"];
      let waiting, begun = false;
      const seen = new IntersectionObserver(([{ isIntersecting }]) => {
        clearTimeout(waiting);
        if (isIntersecting) waiting = setTimeout(begins, 2000);
      }, { threshold: 0.6 });
      const begins = () => {
        seen.disconnect();
        live.ariaLive = "off";  // nobody has asked for it
        begun = true;
        play(0);
      };
      const ends = () => {
        seen.disconnect();
        clearTimeout(waiting);
        svg.removeEventListener("pointermove", ends);
        for (const kind of kinds) removeEventListener(kind, ends);
        live.ariaLive = null;
        if (!begun) return;
        stop();
        reached = 0;
        if (!chosen) idle();
      };
      for (const kind of kinds) addEventListener(kind, ends);
      svg.addEventListener("pointermove", ends);
      seen.observe(svg);
    };

    // A camera: where there is no room for all, one stage at a time.
    const GAPS = [234, 382, 493, 645, 825, 997, 1052];
    // Where it may end, so that no matrix is cut: with stored ones above, and without.
    const ENDS = { high: [236, 494, 618, 840, 1010, 1062, 1222, 1340], low: [236, 396, 502, 610, 694, 840, 1010, 1062, 1222, 1340] };
    // A stage: what the camera looks at, its name, and from where to where it has to be there.
    const stages = [[35, "rows", 0, 214], [330, "Q, K, V", 234, 368], [400, "logits, mask", 234, 482], [480, "weights", 382, 588],
      [640, "mixing", 493, 808], [800, "added", 645, 982], [1000, "feed-forward", 997, 1204], [1125, "next word", 1052, 1340]];
    let stage = needs.stage;
    const print = matchMedia("print"), over = matchMedia("(max-width: 1099px)");  // and not beside the text
    const move = () => {
      // As much as there is room for with digits of 11 pixels; what is stored, where it fits above.
      const beside = box.classList.contains("beside"), above = over.matches && beside, stored = box.classList.contains("stored");
      const room = box.clientWidth - 2 * parseFloat(getComputedStyle(box).paddingLeft);
      const [centre, title, begins, ends] = stages[stage];
      // Above a text, a phone has room for less: what is stored or what is computed, and the last stage without its columns' names.
      const phone = above && room < 450 && !print.matches, last = phone && !stored && title === "next word";
      const wide = print.matches ? 1340 : Math.min(1340, room / (phone ? (stored ? 0.83 : last ? 0.87 : 0.74) : 0.905));
      const whole = wide === 1340, high = whole || (wide > 640 && !above);
      // Words stand at the left, where no cell is cut; at the right it ends where none is.
      const left = Math.max(0, Math.min(centre, 1340 - wide / 2) - wide / 2);
      const views = [0, ...GAPS.map((gap) => gap - 46)].map((from) => {
        const to = ENDS[high || stored ? "high" : "low"].findLast((each) => each <= from + wide) ?? from + wide;
        const misses = (from && begins < from + 46) || ends > to ? 1e4 : 0;
        return [misses + Math.abs(from - left) + from + wide - to, from, to];
      });
      const [, x, to] = whole ? [0, 0, 1340] : views.reduce((a, b) => (b[0] < a[0] ? b : a)), end = to === 1340;
      const [y, tall] = whole ? [0, 579] : stored && above ? [20, 172] : high || stored ? [20, 559] : last ? [222, 336]
        : phone ? [161, 394] : [166, 392];
      svg.setAttribute("viewBox", `${x} ${y} ${Math.round(to - x)} ${tall}`);
      svg.style.width = whole ? "" : `${(100 * (to - x)) / wide}%`;
      box.classList.toggle("last", last);
      box.classList.toggle("narrow", !whole);
      box.classList.toggle("ends", end || whole);
      box.classList.toggle("low", !high);
      box.querySelector("[value=stored]").hidden = high;
      box.querySelector(".bench-strip output").textContent = title;
      words.style.display = x ? "" : "none";
      words.setAttribute("transform", `translate(${x} 0)`);
      // What the model says; where the picture has no room for the loss, and has the shares, the loss.
      box.querySelector(".bench-answer").textContent = !high && title === "next word" ? `loss ${formatted(n.loss)}`
        : `“${WORDS[settings.aim]}”: ${found[`share,2,${settings.aim}`].text}`;
      // A label or a matrix is there whole, or not at all; where the picture goes on, its edge fades.
      const frame = svg.getBoundingClientRect(), edge = frame.right - (end ? -0.5 : 5), cover = words.firstChild.getBoundingClientRect();
      for (const part of [...labels, ...tables]) part.removeAttribute("data-cut");
      if (!whole) {
        const places = labels.map((label) => label.getBoundingClientRect());
        labels.forEach((label, i) => {
          const { left, right, bottom } = places[i];
          label.toggleAttribute("data-cut", left < frame.left - 0.5 || right > edge || bottom > frame.bottom + 1
            || (left < cover.right && bottom > cover.top + 1));
        });
        for (const table of tables) {
          const { left, right } = table.getBoundingClientRect();
          table.toggleAttribute("data-cut", left < frame.left - 0.5 || right > frame.right + 0.5);
        }
      }
    };
    const make = (name, where, attributes) => {
      const part = where.appendChild(document.createElementNS("http://www.w3.org/2000/svg", name));
      for (const [key, value] of Object.entries(attributes)) part.setAttribute(key, value);
      return part;
    };
    const labels = [...svg.querySelectorAll("text.small, text.letter")], tables = [...svg.querySelectorAll("[data-matrix]")];
    const words = make("g", svg, { class: "tag", "aria-hidden": "true" });
    make("rect", words, { class: "cover", x: -9, y: 214, width: 53, height: 400 });
    const tags = three.map((i) => {
      const tag = make("g", words, { transform: `translate(0 ${at("X", i)})` });
      make("rect", tag, { width: 40, height: ROW, rx: 5 });
      make("text", tag, { x: 20, y: 15 });
      return tag;
    });
    // Beside a text: the stage that is read about, the names that are spoken of, what one predicts.
    const follow = () => {
      const marks = [...document.querySelectorAll("[data-stage-read]")];
      let read, asked = false;  // what a question changed ends with its section
      const see = () => {
        const beside = box.getBoundingClientRect(), two = beside.left > innerWidth / 4;
        const below = parseFloat(getComputedStyle(box).marginBottom);
        const line = two ? innerHeight * 0.45 : Math.max(0, beside.bottom + below) + 44;
        const now = scrollY > 40 ? marks.findLast((mark) => mark.getBoundingClientRect().top < line) : marks[0];
        if (!now || now === read || playing) return;
        read = now;
        if (asked) reset();
        asked = false;
        go(+now.dataset.stageRead);
        for (const mark of marks) mark.closest("section").classList.toggle("is-read", mark === now);
        svg.querySelectorAll("[data-stage]").forEach((part) => {
          part.classList.toggle("away", part.dataset.stage !== now.dataset.stageRead);
        });
      };
      addEventListener("scroll", see, { passive: true });
      // Above the text, it must not cover what a link leads to.
      const leaveRoom = () => {
        const beside = box.getBoundingClientRect(), stays = getComputedStyle(box).position === "sticky";
        const over = stays && beside.left < innerWidth / 4;
        document.documentElement.style.scrollPaddingTop = over ? `${beside.height + 16}px` : "";
        const target = document.querySelector(":target"), top = target?.getBoundingClientRect().top;
        if (over && top >= 0 && top < beside.bottom) target.scrollIntoView();
      };
      new ResizeObserver(leaveRoom).observe(box);
      // A line of code that makes a matrix stands for it, as its name in a sentence does.
      for (const pre of document.querySelectorAll(".bd-article pre")) {
        pre.innerHTML = pre.innerHTML.split("\n").map((text) => {
          const name = text.replace(/<[^>]*>/g, "").match(/^(\w+) = /)?.[1];
          return matrices.includes(name) ? `<span class="of-${name}">${text}</span>` : text;
        }).join("\n");
      }
      const nameOf = (part) => part.closest("[class*='of-']")?.className.match(/\bof-(\w+)/)?.[1];
      for (const kind of ["pointerover", "pointerout"]) {
        document.querySelector(".bd-article").addEventListener(kind, ({ target, type }) => {
          const name = nameOf(target);
          if (!name) return;
          svg.querySelectorAll(`[data-matrix="${name}"] .cell`).forEach((part) => {
            part.classList.toggle("lit", type === "pointerover");
          });
        });
      }
      return (on) => { see(); asked = on; };
    };
    // What a question changes.
    const answerTo = (begin) => {
      for (const ask of document.querySelectorAll(".predict")) {
        ask.addEventListener("click", ({ target }) => {
          const commands = JSON.parse(ask.dataset.do);
          if (!target.matches(".options button") || !commands.length) return;
          begin?.(true);  // after a scroll that is not over yet
          reset();
          for (const [what, i, j] of commands) {
            if (what === "switch") { press(i); continue; }
            if (what === "cut") settings.edges[i][j] = false;
            else settings.ids[i] = j;
            last = what;
          }
          draw();
          if (begin) go(last === "cut" ? 4 : 7);
        });
      }
    };
    // For a script that plays on the bench, and hears "bench" after each drawing.
    box.bench = {
      begin: (from) => { Object.assign(needs, from); reset(); begin(); go(needs.stage); idle(); },
      set: (to) => { [settings, chosen] = [to, undefined]; draw(); },
    };
    const go = (to) => { stage = Math.max(0, Math.min(stages.length - 1, to)); move(); };
    for (const button of box.querySelectorAll(".bench-strip button")) {
      const by = +button.value, toggles = Number.isNaN(by);
      if (toggles) button.setAttribute("aria-pressed", false);
      button.addEventListener("click", () => {
        if (!toggles) { go(stage + by); return; }
        button.setAttribute("aria-pressed", box.classList.toggle(button.value));
        move();
      });
    }
    new ResizeObserver(move).observe(box);
    print.addEventListener("change", move);
    // In pieces, so that a slow phone can scroll between them.
    const pieces = [() => draw(true), move, describe, () => answerTo(box.classList.contains("beside") ? follow() : undefined),
      () => { box.dataset.live = ""; }, show];
    const next = () => {
      pieces.shift()();
      if (pieces.length) setTimeout(next);
    };
    next();
  };
  const start = () => document.querySelectorAll(".bench:not([data-live])").forEach(enhance);
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", start);
  else start();
})();
