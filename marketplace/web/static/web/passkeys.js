// Passkeys: a button asks the browser, and its form carries the answer. Needs mfa/js/webauthn-json.js before it.
"use strict";

function optionsOf(form) {
  return JSON.parse(form.dataset.options);
}

// The checkbox decides whether the key can be found without a name, so that it alone signs in.
function creationOptions(form) {
  const options = optionsOf(form).creation_options;
  const alone = form.querySelector("input[name=passwordless]");
  const wanted = options.publicKey.authenticatorSelection;
  wanted.residentKey = alone.checked ? "required" : "discouraged";
  wanted.requireResidentKey = alone.checked;
  if (alone.checked) {
    wanted.userVerification = "required";
  }
  return options;
}

async function loginOptions(form) {
  const response = await fetch(form.action, { headers: { Accept: "application/json" } });
  if (!response.ok) {
    throw new Error("the platform did not answer");
  }
  return (await response.json()).request_options;
}

const ceremonies = {
  add: async (form) => webauthnJSON.create(creationOptions(form)),
  prove: async (form) => webauthnJSON.get(optionsOf(form).request_options),
  login: async (form) => webauthnJSON.get(await loginOptions(form)),
};

for (const form of document.querySelectorAll("form[data-passkey]")) {
  const button = form.querySelector("button");
  const said = form.querySelector("[data-said]");
  if (!window.PublicKeyCredential) {
    said.textContent = "This browser cannot use passkeys on this page.";
    continue;
  }
  button.disabled = false;
  said.textContent = "";
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    said.textContent = "Your browser asks you now.";
    try {
      const credential = await ceremonies[form.dataset.passkey](form);
      form.querySelector("input[name=credential]").value = JSON.stringify(credential);
      form.submit();
    } catch {
      said.textContent = "That did not work: nothing was sent. Try again.";
    }
  });
}
