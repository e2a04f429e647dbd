"""The part of a Kubernetes API server that CoreDNS needs: lists and watches, over HTTP on the loopback interface."""

import http.server
import json
import queue
import threading
import urllib.parse

KINDS = {"services": ("v1", "Service"), "namespaces": ("v1", "Namespace"),
         "endpointslices": ("discovery.k8s.io/v1", "EndpointSlice")}


def item(kind, name, namespace=None, **fields):
    metadata = {"name": name, "uid": f"{kind}-{name}", "resourceVersion": "1"}
    if namespace:
        metadata["namespace"] = namespace
    return {"kind": kind, "apiVersion": {k: v for v, k in KINDS.values()}[kind], "metadata": metadata, **fields}


def service(name, namespace, address):
    return item("Service", name, namespace, spec={"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
                                                  "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]})


class APIServer:
    """Serves items until silent is set: from then on it accepts connections and does not answer."""

    def __init__(self, *items):
        self.items, self.version, self.watches, self.silent = list(items), 1, [], threading.Event()
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                if api.silent.is_set():
                    threading.Event().wait()
                url = urllib.parse.urlparse(self.path)
                options, resource = dict(urllib.parse.parse_qsl(url.query)), url.path.rstrip("/").split("/")[-1]
                if resource not in KINDS:
                    self.respond(404, b"{}")
                elif options.get("watch") in ("1", "true"):
                    self.watch(options, *KINDS[resource])
                else:
                    version, kind = KINDS[resource]
                    self.respond(200, json.dumps({
                        "kind": kind + "List", "apiVersion": version, "metadata": {"resourceVersion": str(api.version)},
                        "items": api.kind(kind)}).encode())

            def respond(self, status, body):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def watch(self, options, version, kind):
                events = queue.Queue()
                if options.get("sendInitialEvents") == "true":
                    for i in api.kind(kind):
                        events.put(("ADDED", i))
                    events.put(("BOOKMARK", {"kind": kind, "apiVersion": version, "metadata": {
                        "resourceVersion": str(api.version), "annotations": {"k8s.io/initial-events-end": "true"}}}))
                api.watches.append((kind, events))
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                try:
                    while True:
                        event, i = events.get()
                        line = json.dumps({"type": event, "object": i}).encode() + b"\n"
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                except OSError:
                    pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def kind(self, kind):
        return [i for i in self.items if i["kind"] == kind]

    def put(self, i):
        """Adds an item, or replaces the one with its kind, namespace and name."""
        def key(x):
            return x["kind"], x["metadata"].get("namespace"), x["metadata"]["name"]

        event = "MODIFIED" if any(key(x) == key(i) for x in self.items) else "ADDED"
        self.version += 1
        i["metadata"]["resourceVersion"] = str(self.version)
        self.items = [x for x in self.items if key(x) != key(i)] + [i]
        for kind, events in list(self.watches):
            if kind == i["kind"]:
                events.put((event, i))
