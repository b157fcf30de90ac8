// The model page's playground: one streamed chat completion at a time, with its tokens, cost and receipt.
"use strict";

(() => {
  const form = document.getElementById("playground");
  if (!form) return;
  const byId = (id) => document.getElementById(id);
  const run = byId("playground-run");
  const stop = byId("playground-stop");
  const answer = byId("playground-answer");
  const errorBox = byId("playground-error");
  const MAX_TOKENS = 256;
  const REFRESH_BEFORE_MS = 60_000; // a token this close to its end is replaced first

  let token = null;
  let tokenEnds = 0;
  let abort = null;

  class Refusal extends Error {
    constructor(message, code) { super(message); this.code = code; }
  }

  async function readError(response) {
    try {
      const { error } = await response.json();
      return new Refusal(error.message, error.code);
    } catch {
      return new Refusal(`The server answered ${response.status}.`, null);
    }
  }

  async function bearer(signal) {
    if (token && Date.now() < tokenEnds - REFRESH_BEFORE_MS) return token;
    const csrf = form.querySelector("[name=csrfmiddlewaretoken]").value;
    const response = await fetch(form.dataset.tokenUrl, { method: "POST", headers: { "X-CSRFToken": csrf }, signal });
    if (!response.ok) throw await readError(response);
    const issued = await response.json();
    token = issued.token;
    tokenEnds = Date.now() + issued.expires_in * 1000;
    return token;
  }

  // Server-sent events of a response body, as parsed JSON; "[DONE]" ends them.
  async function* events(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const parts = rest.split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        const data = lines.map((line) => line.slice(5).trimStart()).join("\n");
        if (data === "[DONE]") return;
        if (data) yield JSON.parse(data);
      }
    }
  }

  function showError(error) {
    errorBox.replaceChildren(document.createTextNode(error.message + " "));
    const link = (href, text) => {
      const a = document.createElement("a");
      a.href = href;
      a.textContent = text;
      errorBox.append(a);
    };
    if (error.code === "insufficient_funds" || error.code === "insufficient_quota") {
      link(form.dataset.walletUrl, "Top up your wallet");
    }
    if (error.code === "licence_not_accepted" || error.code === "access_not_granted") {
      link(location.pathname, "Load the page again to see the conditions");
    }
    errorBox.hidden = false;
  }

  // Exact: nano-dollars never pass through a float.
  function usd(nano) {
    const digits = BigInt(nano).toString().padStart(10, "0");
    return `$${digits.slice(0, -9)}.${digits.slice(-9).replace(/0+$/, "").padEnd(2, "0")}`;
  }

  function meter(name, value) { byId(`meter-${name}`).textContent = value; }

  function showEnd(chunk) {
    if (chunk.usage) {
      meter("in", chunk.usage.prompt_tokens);
      meter("out", chunk.usage.completion_tokens);
      if (chunk.usage.cost_nano_usd !== undefined) meter("cost", usd(chunk.usage.cost_nano_usd));
    }
    const receipt = chunk.intarsia && chunk.intarsia.receipt_id;
    if (receipt) {
      const a = document.createElement("a");
      a.href = form.dataset.receiptsUrl + encodeURIComponent(receipt);
      a.textContent = `${receipt.slice(0, 8)}…`;
      byId("meter-receipt").replaceChildren(a);
    }
  }

  async function predict(signal) {
    const messages = [];
    // A model with a contract brings its instructions and settings along, and may take no system message.
    const system = byId("playground-system")?.value.trim();
    if (system) messages.push({ role: "system", content: system });
    messages.push({ role: "user", content: byId("playground-user").value });
    const body = JSON.stringify({
      model: form.dataset.model,
      messages,
      stream: true,
      stream_options: { include_usage: true },
      ...(form.dataset.contract ? {} : { max_tokens: MAX_TOKENS, temperature: 0 }),
    });
    const headers = { Authorization: `Bearer ${await bearer(signal)}`, "Content-Type": "application/json" };
    const started = performance.now();
    const response = await fetch("/v1/chat/completions", { method: "POST", headers, body, signal });
    if (!response.ok) {
      if (response.status === 401) token = null;
      throw await readError(response);
    }
    let pieces = 0;
    for await (const chunk of events(response.body)) {
      const text = chunk.choices?.[0]?.delta?.content;
      if (text) {
        if (!pieces++) meter("ttft", `${Math.round(performance.now() - started)} ms`);
        answer.append(text);
        meter("out", pieces);
      }
      showEnd(chunk);
      if (chunk.error) throw new Refusal(chunk.error.message, chunk.error.code);
    }
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (abort) return;
    abort = new AbortController();
    run.disabled = true;
    stop.disabled = false;
    errorBox.hidden = true;
    answer.replaceChildren();
    answer.classList.add("running");
    for (const name of ["ttft", "in", "out", "cost", "receipt"]) meter(name, "–");
    try {
      await predict(abort.signal);
    } catch (error) {
      if (error.name === "AbortError") {
        const text = "Stopped. Only the part that was delivered is charged; a charge is listed under Usage.";
        showError(new Refusal(text, null));
      } else if (error instanceof Refusal) {
        showError(error);
      } else {
        const text =
          "The connection was lost. If part of the answer arrived, it is charged; see Usage before you retry.";
        showError(new Refusal(text, null));
      }
    } finally {
      abort = null;
      run.disabled = false;
      stop.disabled = true;
      answer.classList.remove("running");
    }
  });

  for (const example of form.querySelectorAll("[data-prompt]")) {
    example.addEventListener("click", () => {
      byId("playground-user").value = example.dataset.prompt;
      byId("playground-user").focus();
    });
  }

  stop.addEventListener("click", () => abort && abort.abort());
})();
