"""Caddy as a proxy that looks its backends up in the DNS."""

import http.server
import urllib.error
import urllib.request
from loopback import *


def backend(label):
    """Starts an HTTP server that answers with the label, and returns its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(label.encode())

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


class Proxy:
    """Caddy with a path for each reverse_proxy, whose options are given by path. Targets are resolved by the server at the port dns."""

    def __init__(self, dns, **proxies):
        self.port = free_port()
        handles = "\n".join(f"""    handle /{path} {{
        reverse_proxy {{
            {options}
            transport http {{
                resolvers 127.0.0.1:{dns}
            }}
        }}
    }}""" for path, options in proxies.items())
        conf = write("Caddyfile", f"""{{
    admin off
    auto_https off
}}
http://127.0.0.1:{self.port} {{
    handle /static {{
        respond static
    }}
{handles}
}}
""")
        environment = dict(os.environ, HOME=folder("home"), XDG_CONFIG_HOME=folder("home"), XDG_DATA_HOME=folder("home"))
        self.program = start("caddy", "run", "--config", conf, "--adapter", "caddyfile",
                             ready=lambda: self.get("static")[0] == "static", environment=environment)

    def get(self, path):
        """Returns the text, the status of an error, or None, and the seconds passed."""
        begin = time.monotonic()
        try:
            text = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=60).read().decode()
        except urllib.error.HTTPError as e:
            text = e.code
        except OSError:
            text = None
        return text, time.monotonic() - begin
