package files

// shape is a configuration. In its texts @PORT@ stands for a free port for DNS, @WEB@, @WEB2@ and @WEB3@ for others, and
// @DIR@ for the directory of the Corefile.
type shape struct {
	name     string
	corefile string
	// files are beside the Corefile.
	files map[string]string
	// refused is a part of the error with which the agent does not start; "" if it starts.
	refused string
	// corednsRefuses says that CoreDNS does not start. onlyCoreDNS lists the shape as one with which CoreDNS starts and the agent
	// does not.
	corednsRefuses, onlyCoreDNS bool
	// cluster says that it needs an API server: it is only read.
	cluster bool
}

const kubeadm = `.:@PORT@ {
    errors
    health 127.0.0.1:@WEB@ {
        lameduck 1s
    }
    ready 127.0.0.1:@WEB2@
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }
    prometheus 127.0.0.1:@WEB3@
    forward . @DIR@/resolv.conf {
        max_concurrent 1000
    }
    cache 30 {
        disable success cluster.local
        disable denial cluster.local
    }
    loop
    reload
    loadbalance
}
`

const resolv = "search corp.test\nnameserver 127.0.0.77\noptions ndots:5 edns0\n"

var shapes = []shape{
	// Corefiles of distributions.
	{name: "kubeadm", corefile: kubeadm, files: map[string]string{"resolv.conf": resolv}, cluster: true},
	{name: "nodes in hosts, imports of overrides", cluster: true, corefile: `.:@PORT@ {
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
    }
    hosts @DIR@/NodeHosts {
        ttl 60
        reload 15s
        fallthrough
    }
    cache 30
    forward . @DIR@/resolv.conf
    import custom/*.override
}
import custom/*.server
`, files: map[string]string{"resolv.conf": resolv, "NodeHosts": "192.0.2.4 node-1\n", "custom/log.override": "log\n", "custom/corp.server": "corp.test:@PORT@ {\n    forward . 127.0.0.78\n}\n"}},
	{name: "operator", cluster: true, corefile: `# team-a
team.test:@PORT@ {
    prometheus 127.0.0.1:@WEB@
    forward . 127.0.0.77 127.0.0.78:5300 {
        policy random
    }
    errors
    log . {
        class error
    }
    bufsize 1232
    cache 900 {
        denial 9984 30
    }
}
.:@PORT@ {
    bufsize 1232
    errors
    log . {
        class error
    }
    health 127.0.0.1:@WEB2@ {
        lameduck 1s
    }
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
    }
    forward . @DIR@/resolv.conf {
        policy sequential
    }
    cache 900 {
        denial 9984 30
    }
    reload
}
`, files: map[string]string{"resolv.conf": resolv}},
	// Blocks of custom ConfigMaps.
	{name: "stub domain", corefile: "corp.test:@PORT@ {\n    errors\n    cache 30\n    forward . 127.0.0.77\n}\n.:@PORT@ {\n    forward . 127.0.0.78\n}\n"},
	{name: "stub domains in one block", corefile: "a.test:@PORT@ b.test:@PORT@, c.test:@PORT@ {\n    forward . 127.0.0.77 {\n        force_tcp\n    }\n}\n"},
	{name: "rewrite of a name", corefile: ".:@PORT@ {\n    rewrite name substring old.test new.test\n    rewrite stop {\n        name regex (.*)\\.ext\\.test {1}.svc.test\n        answer name (.*)\\.svc\\.test {1}.ext.test\n    }\n    forward . 127.0.0.77\n}\n"},
	{name: "no AAAA", corefile: ".:@PORT@ {\n    template ANY AAAA {\n        rcode NOERROR\n    }\n    forward . 127.0.0.77\n}\n"},
	{name: "split zone by template", corefile: ".:@PORT@ {\n    template IN A apps.test {\n        match .*\\.apps\\.test\n        answer \"{{ .Name }} 60 IN A 192.0.2.9\"\n        fallthrough\n    }\n    forward . 127.0.0.77\n}\n"},
	{name: "hosts in the block", corefile: ".:@PORT@ {\n    hosts {\n        192.0.2.1 registry.test registry\n        2001:db8::1 registry.test\n        fallthrough\n    }\n    forward . 127.0.0.77\n}\n"},
	{name: "hosts with a name that is none", corefile: ".:@PORT@ {\n    hosts {\n        192.0.2.1 bad..test registry.test\n        fallthrough\n    }\n    forward . 127.0.0.77\n}\n"},
	{name: "hosts file, none there", corefile: ".:@PORT@ {\n    hosts @DIR@/none {\n        fallthrough\n    }\n    forward . 127.0.0.77\n}\n"},
	{name: "override with directives that the block has", corefile: ".:@PORT@ {\n    loadbalance\n    reload\n    minimal\n    import custom/*.override\n    forward . 127.0.0.77\n}\n", files: map[string]string{"custom/a.override": "loadbalance round_robin\nreload 30s\nminimal\n"}},
	{name: "hosts without a file", corefile: "corp.test:@PORT@ {\n    hosts /dev/null {\n        192.0.2.1 www.corp.test\n    }\n}\n.:@PORT@ {\n    whoami\n}\n"},
	{name: "hosts file with every kind of line", corefile: ".:@PORT@ {\n    hosts @DIR@/hosts\n    forward . 127.0.0.77\n}\n",
		files: map[string]string{"hosts": "\ufeff# managed\r\n127.0.0.1\tlocalhost localhost.localdomain # loopback\r\nfe80::1%lo link.test\n::ffff:192.0.2.8 mapped.test\n192.0.2.300 no.test\n192.0.2.9\n192.0.2.10 under_score.test -dash.test UPPER.Test trailing.test.\n0.0.0.0 ads.test\n"}},
	{name: "TLS upstreams", corefile: ".:@PORT@ {\n    forward . tls://127.0.0.77 tls://127.0.0.78:8853 {\n        tls_servername dns.test\n        health_check 5s\n        expire 20s\n    }\n    cache 120\n}\n"},
	{name: "forwards by zone", corefile: ".:@PORT@ {\n    forward corp.test 127.0.0.77\n    forward . 127.0.0.78 {\n        except internal.test\n        policy sequential\n        max_fails 3\n        prefer_udp\n        next NXDOMAIN SERVFAIL\n        failover SERVFAIL REFUSED\n    }\n}\n"},
	{name: "errors by pattern", corefile: ".:@PORT@ {\n    errors {\n        consolidate 5m \".* i/o timeout$\" warning\n        consolidate 30s \"^Failed to .+\"\n    }\n    forward . 127.0.0.77\n}\n"},
	{name: "log by class", corefile: ".:@PORT@ {\n    log {\n        class denial error\n    }\n    log corp.test \"{remote} {name} {type} {rcode}\"\n    whoami\n}\n"},
	{name: "cache with all options", corefile: ".:@PORT@ {\n    cache {\n        success 10000 900 10\n        denial 5000 30\n        prefetch 5 60s 10%\n        serve_stale 1h immediate\n        servfail 1s\n        keepttl\n    }\n    forward . 127.0.0.77\n}\n"},
	{name: "cache of nothing", corefile: ".:@PORT@ {\n    cache 30 {\n        success 0\n        denial 0\n    }\n    forward . 127.0.0.77\n}\n"},
	{name: "private zones by reverse CIDR", corefile: "10.0.0.0/8:@PORT@ 192.168.0.0/16:@PORT@ {\n    forward . 127.0.0.77\n}\n"},
	{name: "access list", corefile: ".:@PORT@ {\n    acl {\n        allow net 10.0.0.0/8 127.0.0.0/8\n        filter type AAAA net 192.0.2.0/24\n        block\n    }\n    whoami\n}\n"},
	{name: "snippets", corefile: "(common) {\n    errors\n    loadbalance round_robin\n    cache 30\n}\n(up) {\n    import common\n    forward . 127.0.0.77\n}\na.test:@PORT@ {\n    import up\n}\n.:@PORT@ {\n    import up\n}\n"},
	{name: "imports in imports", corefile: "import zones/*.conf\n", files: map[string]string{
		"zones/a.conf": "a.test:@PORT@ {\n    import ../shared/up.inc\n}\n", "zones/b.conf": ".:@PORT@ {\n    import ../shared/*.inc\n}\n", "shared/up.inc": "forward . 127.0.0.77\n", "shared/z.inc": "cache 30\n",
	}},
	{name: "import of nothing", corefile: ".:@PORT@ {\n    import custom/*.override\n    forward . 127.0.0.77\n}\nimport custom/*.server\n"},
	{name: "zone file", corefile: "files.test:@PORT@ {\n    file @DIR@/db.files.test\n    transfer {\n        to *\n    }\n}\n", files: map[string]string{"db.files.test": "$ORIGIN files.test.\n$TTL 300\n@ IN SOA ns hostmaster 1 7200 3600 1209600 300\n@ IN NS ns\nns IN A 192.0.2.1\n* IN A 192.0.2.2\n"}},
	{name: "environment", corefile: "{$NO_SUCH_VARIABLE}.:@PORT@ {\n    forward . 127.0.0.77\n}\n"},
	{name: "comments, quotes and CRLF", corefile: "# top\r\n.:@PORT@ { # here\r\n    log . \"{remote} {name}\" # format\r\n    forward . 127.0.0.77\r\n}\r\n"},
	{name: "all addresses", corefile: ".:@PORT@ {\n    bind 0.0.0.0\n    whoami\n}\n"},
	{name: "one zone for each family", corefile: ".:@PORT@ {\n    bind 0.0.0.0\n    whoami\n}\n.:@PORT@ {\n    bind ::\n    whoami\n}\n"},
	{name: "bind except", corefile: ".:@PORT@ {\n    bind lo {\n        except ::1\n    }\n    whoami\n}\n"},
	{name: "resolv.conf with every kind of line", corefile: ".:@PORT@ {\n    forward . @DIR@/resolv.conf\n}\n",
		files: map[string]string{"resolv.conf": "; by hand\n# or not\ndomain corp.test\nsearch a.test b.test\nnameserver 127.0.0.77\nnameserver ns.corp.test\nnameserver fe80::1%lo\noptions timeout:1 rotate\nsortlist 192.0.2.0\n"}},
	{name: "resolv.conf without a name server", corefile: ".:@PORT@ {\n    forward . @DIR@/resolv.conf\n}\n", files: map[string]string{"resolv.conf": "search a.test\n"}, corednsRefuses: true, refused: "names no name server"},
	{name: "view by client", corefile: ".:@PORT@ {\n    view inside {\n        expr incidr(client_ip(), '127.0.0.0/8')\n    }\n    whoami\n}\n.:@PORT@ {\n    forward . 127.0.0.77\n}\n"},
	{name: "dns64", corefile: ".:@PORT@ {\n    dns64 64:ff9b::/96 {\n        translate_all\n    }\n    forward . 127.0.0.77\n}\n"},
	{name: "consolidation with a level", corefile: ".:@PORT@ {\n    errors {\n        consolidate 5s \"^Failed to .+\"\n        consolidate 10s \".* i/o timeout$\" error\n    }\n    forward . 127.0.0.77 {\n        prefer_udp\n        max_fails 0\n    }\n    cache 30 {\n        success 39936\n        denial 9984\n    }\n}\n"},
	{name: "denial of HINFO", corefile: ".:@PORT@ {\n    template ANY HINFO . {\n        rcode NXDOMAIN\n    }\n    forward . 127.0.0.77 {\n        force_tcp\n        expire 1s\n    }\n}\n"},
	{name: "directives from a file", corefile: ".:@PORT@ {\n    import generated/one.inc\n    import custom/*.override\n    forward . 127.0.0.77\n}\n", files: map[string]string{"generated/one.inc": "log . {\n    class error\n}\n", "custom/a.override": "hosts {\n    192.0.2.1 one.test\n    fallthrough\n}\n", "custom/b.override": "rewrite stop {\n    name regex (.*)\\.pug\\.test {1}.svc.test\n    answer name (.*)\\.svc\\.test {1}.pug.test\n}\n"}},
	{name: "TLS beside plain upstreams", corefile: "corp.test:@PORT@ {\n    forward . 127.0.0.77 tls://127.0.0.78:853 {\n        tls_servername dns.corp.test\n        policy random\n    }\n    cache 900 {\n        denial 9984 30\n    }\n}\nhostname.bind:@PORT@ {\n    chaos\n}\n.:@PORT@ {\n    whoami\n}\n"},
	{name: "variables with values in a zone and a port", corefile: "{$NO_SUCH_VARIABLE}corp.test:@PORT@ {\n    whoami\n}\n.:@PORT@ {\n    whoami {%NO_SUCH_VARIABLE%}\n}\n", corednsRefuses: true, refused: "whoami"},
	// What neither starts with.
	{name: "proxy", corefile: ".:@PORT@ {\n    proxy . 127.0.0.77\n}\n", corednsRefuses: true, refused: "forward"},
	{name: "template of a chart", corefile: ".:@PORT@ {\n    forward . {{ .Values.upstream }}\n}\n", corednsRefuses: true, refused: "template"},
	{name: "template of Ansible", corefile: "{% for zone in zones %}\n{{ zone }}:@PORT@ {\n    whoami\n}\n{% endfor %}\n", corednsRefuses: true, refused: "template"},
	{name: "erratic", corefile: "corp.test:@PORT@ {\n    erratic\n}\n", corednsRefuses: true, refused: "this version of nodens doesn't"},
	// What CoreDNS starts with, and the agent refuses.
	{name: "placeholder of an installer", corefile: "__PILLAR__DNS__DOMAIN__:@PORT@ {\n    whoami\n}\n", onlyCoreDNS: true, refused: "installer"},
	{name: "a directory as hosts file", corefile: ".:@PORT@ {\n    hosts @DIR@\n    whoami\n}\n", onlyCoreDNS: true, refused: "not a regular file"},
}
