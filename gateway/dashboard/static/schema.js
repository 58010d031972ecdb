// The viewer of the API's description. It asks this gateway alone, and keeps no credential after the page is closed.
"use strict";

const place = document.getElementById("schema");
SwaggerUIBundle({
  url: place.dataset.document,
  domNode: place,
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: -1,
  persistAuthorization: false,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
});
