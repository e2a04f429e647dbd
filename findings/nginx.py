"""nginx as a proxy that resolves its backend's name for each request."""

import urllib.error
import urllib.request
from collections import Counter
from loopback import *


def statuses(servers, service, extra=""):
    """Counts the statuses of 10 requests, each for another name."""
    port, directory, results = free_port(), folder("nginx"), Counter()
    temporary = "\n".join(f"{kind}_temp_path {directory}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    conf = write("nginx.conf", f"""daemon off;
pid {directory}/pid;
error_log {directory}/errors;
events {{ }}
http {{
    access_log off;
    {temporary}
    resolver {" ".join(f"127.0.0.1:{s.port}" for s in servers)} {extra};
    server {{
        listen 127.0.0.1:{port};
        location = / {{ return 204; }}
        location ~ ^/(.+)$ {{ proxy_pass http://$1.example:{service}/; }}
    }}
}}
""")

    def get(path):
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}").status
        except urllib.error.HTTPError as e:
            return e.code
        except OSError:
            return None

    p = start("nginx", "-c", conf, "-p", directory, "-e", directory + "/errors", ready=lambda: get("") == 204)
    for i in range(10):
        results[get(f"n{i}")] += 1
    end(p)
    return results
