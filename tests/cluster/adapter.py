"""What prometheus-adapter does for one rule of its values: serves an external metric that it asks Prometheus for.

adapter.py ADDRESS:PORT CERTIFICATE KEY PROMETHEUS VALUES
"""

import datetime
import http.server
import json
import re
import ssl
import sys
import urllib.parse
import urllib.request

address, certificate, key, prometheus, values = sys.argv[1:]
GROUP = "external.metrics.k8s.io/v1beta1"

with open(values, encoding="utf-8") as file:
    text = file.read()
series = re.search(r"seriesQuery: (\w+)", text)[1]
name = re.search(r"name: {as: (\w+)}", text)[1]
query = re.search(r"metricsQuery: (.+)", text)[1]


def ask(namespace, labels):
    """The samples of the rule's query, of one namespace and with labels."""
    matchers = ",".join(f'{label}="{value}"' for label, value in {"namespace": namespace, **labels}.items())
    asked = query.replace("<<.Series>>", series).replace("<<.LabelMatchers>>", matchers).replace("<<.GroupBy>>", "namespace")
    url = f"{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": asked})
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)["data"]["result"]


class Handler(http.server.BaseHTTPRequestHandler):
    """The two paths that the API server passes on."""

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        found = re.fullmatch(rf"/apis/{GROUP}/namespaces/([^/]+)/{name}", url.path)
        try:
            if url.path.rstrip("/") == f"/apis/{GROUP}":
                resource = {"name": name, "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
                self.answer(200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP, "resources": [resource]})
            elif found:
                selector = urllib.parse.parse_qs(url.query).get("labelSelector", [""])[0]
                labels = dict(pair.split("=", 1) for pair in selector.split(",") if pair)
                items = [self.item(sample) for sample in ask(found[1], labels)]
                self.answer(200, {"kind": "ExternalMetricValueList", "apiVersion": GROUP, "metadata": {}, "items": items})
            else:
                self.answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "message": self.path})
        except OSError as error:
            self.answer(503, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 503, "message": f"{prometheus}: {error}"})

    @staticmethod
    def item(sample):
        at, value = sample["value"]
        time = datetime.datetime.fromtimestamp(at, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"metricName": name, "metricLabels": sample["metric"], "timestamp": time, "value": f"{round(float(value) * 1000)}m"}

    def answer(self, code, what):
        body = json.dumps(what).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


host, port = address.rsplit(":", 1)
server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
