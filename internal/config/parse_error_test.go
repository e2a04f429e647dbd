// These tests use maxErrors and maxFile, which are not exported.

package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// allDirectives is the list of directives in an error.
func allDirectives() string { return strings.Join(slices.Sorted(slices.Values(Directives())), ", ") }

// TestFaults reads a directive at line 3 of a block and looks at the whole error.
func TestFaults(t *testing.T) {
	all := allDirectives()
	forwardOptions := "doh_method, except, expire, failfast_all_unhealthy_upstreams, failover, force_tcp, health_check, max_age, max_concurrent, max_connect_attempts, max_fails, max_idle_conns, max_rate, next, next_on_nodata, policy, prefer_udp, read_timeout, resolver, source_address, tls, tls_servername"
	empty := write(t, t.TempDir(), "resolv.conf", "nameserver none\n")
	folder := t.TempDir()
	var many []string
	for i := range 16 {
		many = append(many, fmt.Sprintf("192.0.2.%d", i))
	}
	long := write(t, t.TempDir(), "long.conf", search(maxSearch+1))
	for _, tt := range []struct{ text, want string }{
		{"relod", `3: unknown directive "relod" (did you mean "reload"?); allowed: ` + all},
		{"forwrad . 192.0.2.1", `3: unknown directive "forwrad" (did you mean "forward"?); allowed: ` + all},
		{"xyzzy", `3: unknown directive "xyzzy"; allowed: ` + all},
		{"nomad x y", `3: CoreDNS has the directive "nomad", this version of nodens doesn't: forward the zone to a CoreDNS that has it; allowed: ` + all},
		{"etcd a {\nb c\n}", `3: CoreDNS has the directive "etcd", this version of nodens doesn't: forward the zone to a CoreDNS that has it; allowed: ` + all},

		{"multisocket 0", `3: multisocket: 0 is out of range; allowed: 1 to 1024`},
		{"multisocket 1 2", `3: multisocket: "2" is one argument too many after "multisocket"; write: multisocket [SOCKETS]`},
		{"shed 1", `3: shed: "1" is one argument too many after "shed"; write: shed`},
		{"cancel 0s", `3: cancel: 0s is out of range; allowed: 1ns to 2562047h47m16.854775807s`},
		{"cancel 5", `3: cancel: "5" is not a duration such as 500ms, 30s or 1m30s`},
		{"https 1", `3: https: "1" is one argument too many after "https"; write: https { max_connections|max_streams NUMBER }`},
		{"quic 1", `3: quic: "1" is one argument too many after "quic"; write: quic { max_streams|max_connections|worker_pool_size NUMBER }`},
		{"quic {\nmax_streams 0\n}", `4: quic max_streams: 0 is out of range; allowed: 1 to 2147483647`},
		{"https3 {\nmax_connections many\n}", `4: https3 max_connections: "many" is not a whole number; allowed: 0 to 2147483647`},
		{"https3 {\nmax_streams 1\nmax_streams 1\n}", `5: https3 max_streams: max_streams is in the block twice; keep one`},
		{"https {\nmax_streams -1\n}", `4: https max_streams: -1 is out of range; allowed: 0 to 4294967295`},

		{"chaos " + strings.Repeat("v", 256), `3: chaos: a text has 256 bytes; allowed: up to 255`},
		{"chaos v" + strings.Repeat(" a", 101), `3: chaos: there are 101 authors; allowed: up to 100`},
		{"header", `3: header: no flag is named; write: header { query|response set|clear aa|ra|rd… }`},
		{"header {\nquery set\n}", `4: header: an argument is missing after "query"; write: query set|clear aa|ra|rd…`},
		{"header {\nquery flip rd\n}", `4: header query: unknown action "flip"; allowed: clear, set`},
		{"header {\nresponse set ad\n}", `4: header response: unknown flag "ad" (did you mean "aa"?); allowed: aa, ra, rd`},
		{"root", `3: root: an argument is missing after "root"; write: root DIRECTORY`},

		{"bind", `3: bind: an argument is missing after "bind"; write: bind ADDRESS|INTERFACE…`},
		{"bind nosuch", `3: bind: "nosuch" is neither an IP address nor an interface of this machine: file does not exist`},
		{"bind bare", `3: bind: the interface "bare" has no address`},
		{"bind eth0 {\nexcept eth0\n}", `3: bind: no address is left to listen on; take one out of except, or give the interface an address`},
		{"bind eth0 {\nexcpt eth0\n}", `4: bind: unknown option "excpt" (did you mean "except"?); allowed: except`},
		{"bind eth0 {\nexcept\n}", `4: bind: an argument is missing after "except"; write: except ADDRESS|INTERFACE…`},

		{"bufsize 511", `3: bufsize: 511 is out of range; allowed: 512 to 65535`},
		{"bufsize 65536", `3: bufsize: 65536 is out of range; allowed: 512 to 65535`},
		{"bufsize big", `3: bufsize: "big" is not a whole number; allowed: 512 to 65535`},
		{"bufsize 512 513", `3: bufsize: "513" is one argument too many after "bufsize"; write: bufsize [SIZE]`},
		{"bufsize {\na\n}", `4: bufsize: unknown option "a": bufsize takes no options`},
		{"bufsize\nbufsize 512", `4: bufsize: "bufsize" is in the block twice, first at Corefile:3; keep one`},

		{"reload 1s", `3: reload: 1s is out of range; allowed: 2s to 2562047h47m16.854775807s`},
		{"reload 30", `3: reload: "30" is not a duration such as 500ms, 30s or 1m30s`},
		{"reload 30s 1ms", `3: reload: 1ms is out of range; allowed: 1s to 2562047h47m16.854775807s`},
		{"reload 30s 5s 1s", `3: reload: "1s" is one argument too many after "reload"; write: reload [INTERVAL|off] [JITTER]`},

		{"health 8080", `3: health: "8080" is not an address with a port such as 127.0.0.1:8080 or :8080`},
		{"health :99999", `3: health: ":99999" has a bad port; allowed: 0 to 65535`},
		{"health a:1 b:2", `3: health: "b:2" is one argument too many after "health"; write: health [ADDRESS:PORT] (one address: with several local IPs, write the one that the kubelet asks)`},
		{"health {\nlameduk 5s\n}", `4: health: unknown option "lameduk" (did you mean "lameduck"?); allowed: lameduck`},
		{"health {\nlameduck -5s\n}", `4: health lameduck: -5s is out of range; allowed: 0s to 2562047h47m16.854775807s`},
		{"health {\nlameduck {\n5s\n}\n}", `4: health: "lameduck" takes no block in braces; write: lameduck DURATION`},

		{"ready x", `3: ready: "x" is not an address with a port such as 127.0.0.1:8080 or :8080`},
		{"ready {\nmonitor once\n}", `4: ready monitor: unknown monitor "once"; allowed: continuously, until-ready`},
		{"prometheus 9253", `3: prometheus: "9253" is not an address with a port such as 127.0.0.1:8080 or :8080`},
		{"prometheus {\nruntime_metrics\n}", `4: prometheus: CoreDNS has the option "runtime_metrics", this version of nodens doesn't: the Go runtime's usual metrics are always there; take the line out`},

		{"errors stderr", `3: errors: unknown log file "stderr"; allowed: stdout`},

		{"log a..b", `3: log: "a..b" is not a zone: not a domain name: "a..b" has an empty label`},
		{"log {\nclass succes\n}", `4: log class: unknown class "succes" (did you mean "success"?); allowed: all, denial, error, success`},

		{"loadbalance weighted", `3: loadbalance: an argument is missing after "loadbalance"; write: loadbalance weighted WEIGHTFILE`},
		{"loadbalance weighted a b", `3: loadbalance: "b" is one argument too many after "loadbalance"; write: loadbalance weighted WEIGHTFILE`},
		{"loadbalance weighted \"\"", `3: loadbalance: the file's name is empty; is an environment variable unset?`},
		{"loadbalance round_robin a", `3: loadbalance: "a" is one argument too many after "loadbalance"; write: loadbalance [round_robin|weighted WEIGHTFILE]`},
		{"loadbalance weighted f {\nreload x\n}", `4: loadbalance reload: "x" is not a duration such as 500ms, 30s or 1m30s`},
		{"loadbalance {\nreload 3s\n}", `4: loadbalance reload: only a file of weights is read again; write: loadbalance weighted WEIGHTFILE, or take the line out`},
		{"loadbalance {\nprefer\n}", `4: loadbalance: an argument is missing after "prefer"; write: prefer CIDR…`},
		{"loadbalance {\nprefer 10.0.0.0\n}", `4: loadbalance prefer: "10.0.0.0" is no network such as 10.0.0.0/8 or 2001:db8::/32`},
		{"loadbalance {\nprefer" + strings.Repeat(" ::/0", 65) + "\n}", `4: loadbalance prefer: prefer has 65 networks; allowed: up to 64`},
		{"loadbalance robin", `3: loadbalance: unknown policy "robin"; allowed: round_robin, weighted`},
		{"loop x", `3: loop: "x" is one argument too many after "loop"; write: loop`},

		{"hosts {\nttl 0\n}", `4: hosts ttl: 0 is out of range; allowed: 1 to 65535`},
		{"hosts {\nreload -1s\n}", `4: hosts reload: -1s is out of range; allowed: 0s to 2562047h47m16.854775807s`},
		{"hosts {\n192.0.2.1\n}", `4: hosts: an argument is missing after "192.0.2.1"; write: ADDRESS NAMES…`},
		{"hosts {\n192.0.2.300 a.test\n}", `4: hosts: unknown option "192.0.2.300"; allowed: fallthrough, no_reverse, reload, ttl`},
		{"hosts {\nno_revers\n}", `4: hosts: unknown option "no_revers" (did you mean "no_reverse"?); allowed: fallthrough, no_reverse, reload, ttl`},

		{"kubernetes 10.0.0.0/8", `3: kubernetes: all zones are reverse zones; name the cluster's own zone too, such as cluster.local`},
		{"kubernetes {\npods insecur\n}", `4: kubernetes pods: unknown value "insecur" (did you mean "insecure"?); allowed: disabled, insecure, verified`},
		{"kubernetes {\nttl 3601\n}", `4: kubernetes ttl: 3601 is out of range; allowed: 0 to 3600`},
		{"kubernetes {\nzonl\n}", `4: kubernetes: unknown option "zonl" (did you mean "zonal"?); allowed: apiserver_burst, apiserver_max_inflight, apiserver_qps, endpoint, endpoint_pod_names, endpoints, fallthrough, ignore, kubeconfig, labels, manifests, multicluster, namespace_labels, namespaces, noendpoints, pods, save, scope, scope_idle, scope_max, startup_timeout, tls, topology, ttl, zonal`},
		{"kubernetes {\nzonal yes\n}", `4: kubernetes: "yes" is one argument too many after "zonal"; write: zonal`},
		{"kubernetes {\nzonal\nnoendpoints\n}", `4: kubernetes: "zonal" and "noendpoints" (line 5) can't both be set: zonal names are made of endpoints; take one of the two out`},
		{"kubernetes {\nnamespace_labels\n}", `4: kubernetes: an argument is missing after "namespace_labels"; write: namespace_labels SELECTOR…`},
		{"kubernetes {\nnamespaces a\nnamespace_labels b=c\n}", `5: kubernetes: "namespace_labels" and "namespaces" (line 4) can't both be set: list the namespaces, or select them by their labels`},
		{"kubernetes {\nmulticluster\n}", `4: kubernetes: an argument is missing after "multicluster"; write: multicluster ZONES…`},
		{"kubernetes a.test 10.0.0.0/8 {\nmulticluster a.test b.test\n}", `4: kubernetes multicluster: "b.test" is none of the zones that this directive answers; write it behind ` + "`kubernetes`" + ` too; allowed: a.test.`},
		{"kubernetes a.test 10.0.0.0/8 {\nmulticluster 10.0.0.0/8\n}", `4: kubernetes multicluster: "10.0.0.0/8" is none of the zones that this directive answers; write it behind ` + "`kubernetes`" + ` too; allowed: a.test.`},
		{"kubernetes {\nmulticluster a..b\n}", `4: kubernetes multicluster: "a..b" is not a zone: not a domain name: "a..b" has an empty label`},
		{"kubernetes {\nscope nodes\n}", `4: kubernetes scope: unknown value "nodes" (did you mean "node"?); allowed: cluster, node`},
		{"kubernetes {\nscope\n}", `4: kubernetes: an argument is missing after "scope"; write: scope node|cluster`},
		{"kubernetes {\nscope_idle 59s\n}", `4: kubernetes scope_idle: 59s is out of range; allowed: 1m0s to 24h0m0s`},
		{"kubernetes {\nscope_idle 25h\n}", `4: kubernetes scope_idle: 25h is out of range; allowed: 1m0s to 24h0m0s`},
		{"kubernetes {\nscope_idle 60\n}", `4: kubernetes scope_idle: "60" is not a duration such as 500ms, 30s or 1m30s`},
		{"kubernetes {\nscope_max 0\n}", `4: kubernetes scope_max: 0 is out of range; allowed: 1 to 1000`},
		{"kubernetes {\nscope_max 1001\n}", `4: kubernetes scope_max: 1001 is out of range; allowed: 1 to 1000`},
		{"kubernetes {\nendpoints some\n}", `4: kubernetes endpoints: unknown value "some"; allowed: all`},
		{"kubernetes {\nnoendpoints\nendpoints all\n}", `5: kubernetes: "endpoints" and "noendpoints" (line 4) can't both be set: one asks for endpoints and the other for none; take one of the two out`},
		{"kubernetes {\ntopology on\n}", `4: kubernetes topology: unknown value "on"; allowed: hints, off, order`},
		{"kubernetes {\nsave view\n}", `4: kubernetes save: "view" is not an absolute path such as /var/lib/nodens/view`},
		{"kubernetes {\nsave " + folder + "/none/view\n}", `4: kubernetes save: the folder ` + folder + `/none does not exist; make it, or mount it into the pod`},
		{"kubernetes {\nsave " + empty + "/view\n}", `4: kubernetes save: ` + empty + ` is not a folder, so that "` + empty + `/view" can't be in it`},
		{"kubernetes {\nsave " + folder + "\n}", `4: kubernetes save: "` + folder + `" is a folder; name a file in it`},
		{"kubernetes {\nsave /dev/null\nmanifests " + folder + "\n}", `4: kubernetes: "save" and "manifests" (line 5) can't both be set: manifests are files that the view starts from already`},
		{"kubernetes {\nendpoint 192.0.2.1\n}", `4: kubernetes endpoint: "192.0.2.1" is not the URL of an API server such as https://10.0.0.1:6443`},
		{"kubernetes {\nendpoint\n}", `4: kubernetes: an argument is missing after "endpoint"; write: endpoint URL…`},
		{"kubernetes {\ntls a b\n}", `4: kubernetes: an argument is missing after "tls"; write: tls CERT KEY CACERT`},
		{"kubernetes {\nignore empty\n}", `4: kubernetes ignore: unknown value "empty"; allowed: empty_service`},
		{"kubernetes {\napiserver_qps NaN\n}", `4: kubernetes apiserver_qps: "NaN" is not a number of requests per second; allowed: 0 or more`},
		{"kubernetes {\nmanifests " + folder + "/none\n}", `4: kubernetes manifests: can't read the manifests at "` + folder + `/none": file does not exist`},
		{"kubernetes {\nmanifests " + folder + "/*.yaml\n}", `4: kubernetes manifests: no file matches "` + folder + `/*.yaml"`},
		{"kubernetes {\nmanifests " + folder + "\nkubeconfig /f\n}", `5: kubernetes: "kubeconfig" and "manifests" (line 4) can't both be set: manifests stand in for the API server`},
		{"kubernetes\nkubernetes a.test", `4: kubernetes: "kubernetes" is in the block twice, first at Corefile:3; keep one`},

		{"autopath", `3: autopath: an argument is missing after "autopath"; write: autopath [ZONES…] RESOLV-CONF|@kubernetes`},
		{"autopath @kubernetes", `3: autopath: @kubernetes takes the search path from the block's kubernetes directive, and the block has none; add it, or name a resolv.conf file`},
		{"kubernetes\nautopath @kubernets", `4: autopath: unknown source of the search path "@kubernets" (did you mean "@kubernetes"?); allowed: @kubernetes`},
		{"kubernetes\nautopath a..b @kubernetes", `4: autopath: "a..b" is not a zone: not a domain name: "a..b" has an empty label`},
		{"autopath example.org", `3: autopath: "example.org" is neither @kubernetes nor a file that exists; write: autopath [ZONES…] RESOLV-CONF|@kubernetes`},
		{"autopath " + folder, `3: autopath: can't read "` + folder + `": ` + folder + ` is a folder`},
		{"autopath " + empty, "3: autopath: " + empty + " names no search domain; add a `search DOMAINS…` line to it"},
		{"autopath " + long, `3: autopath: ` + long + ` names 33 search domains; allowed: 1 to 32`},
		{"kubernetes\nautopath @kubernetes {\nx\n}", `5: autopath: unknown option "x": autopath takes no options`},
		{"kubernetes\nautopath @kubernetes\nautopath a.test @kubernetes", `5: autopath: "autopath" is in the block twice, first at Corefile:4; keep one`},

		{"k8s_external", `3: k8s_external: the block needs a kubernetes directive, which finds the Services; add one, such as ` + "`kubernetes cluster.local`"},
		{"kubernetes\nk8s_external a..b", `4: k8s_external: "a..b" is not a zone: not a domain name: "a..b" has an empty label`},
		{"kubernetes\nk8s_external {\napx a\n}", `5: k8s_external: unknown option "apx" (did you mean "apex"?); allowed: apex, fallthrough, headless, ttl`},
		{"kubernetes\nk8s_external {\napex a.b\n}", `5: k8s_external apex: "a.b" is not one label of a domain name, such as dns`},
		{"kubernetes\nk8s_external {\napex " + strings.Repeat("a", 64) + "\n}", `5: k8s_external apex: "` + strings.Repeat("a", 64) + `" is not one label of a domain name, such as dns`},
		{"kubernetes\nk8s_external {\nttl 3601\n}", `5: k8s_external ttl: 3601 is out of range; allowed: 0 to 3600`},
		{"kubernetes\nk8s_external {\nheadless all\n}", `5: k8s_external: "all" is one argument too many after "headless"; write: headless`},
		{"kubernetes\nk8s_external\nk8s_external a.test", `5: k8s_external: "k8s_external" is in the block twice, first at Corefile:4; keep one`},

		{"cache 0", `3: cache: 0 is out of range; allowed: 1 to 2147483647`},
		{"cache {\nsuccess -1\n}", `4: cache success: -1 is out of range; allowed: 0 to 10000000`},
		{"cache {\ndenial 5 0\n}", `4: cache denial: 0 is out of range; allowed: 1 to 2147483647`},
		{"cache {\ndenial 5 5 -1\n}", `4: cache denial: -1 is out of range; allowed: 0 to 2147483647`},
		{"cache {\ndenal 5\n}", `4: cache: unknown option "denal" (did you mean "denial"?); allowed: denial, disable, keepttl, nxdomain_cut, prefetch, serve_stale, serve_stale_policy, servfail, success`},
		{"cache {\nservfail 6m\n}", `4: cache servfail: 6m is out of range; allowed: 0s to 5m0s`},
		{"cache\ncache 30", `4: cache: "cache" is in the block twice, first at Corefile:3; keep one`},

		{"forward .", `3: forward: an argument is missing after "forward"; write: forward FROM TO… (TO: an IP address or a name, with or without a port, tls://, https:// or quic:// before it, a resolv.conf file, or k8s:NAMESPACE/NAME)`},
		{"forward 10.0.0.0/9 192.0.2.1", `3: forward: "10.0.0.0/9" is 128 reverse zones; write a forward for each, or a CIDR that ends at a label`},
		{"forward . dns..test", `3: forward: "dns..test" is neither an IP address, nor the name of a server, nor a file that exists; write IP, NAME, or one of them with :PORT`},
		{"forward . " + folder + "/none", `3: forward: "` + folder + `/none" is neither an IP address nor a file that exists; write an IP address, or the path of a resolv.conf file`},
		{"forward . " + folder, `3: forward: can't read "` + folder + `": ` + folder + ` is a folder`},
		{"forward . " + empty, "3: forward: " + empty + " names no name server; add a `nameserver ADDRESS` line to it, or write the upstream's IP address here"},
		{"forward . udp://192.0.2.1", `3: forward: "udp://192.0.2.1" has an unknown scheme "udp"; allowed: dns, https, quic, tls`},
		{"forward . 192.0.2.1:0", `3: forward: "192.0.2.1:0" has port 0; allowed: 1 to 65535`},
		{`forward . ""`, `3: forward: "" is empty: is an environment variable unset?`},
		{"forward . " + strings.Join(many, " "), `3: forward: there are 16 upstreams; allowed: 1 to 15`},
		{"forward . 169.254.20.10", `3: forward: the upstream 169.254.20.10:53 is an address that this block listens on, so queries would loop; name another upstream`},
		{"bind 0.0.0.0\nforward . 127.0.0.1", `4: forward: the upstream 127.0.0.1:53 is an address that this block listens on, so queries would loop; name another upstream`},
		{"forward . 192.0.2.1 {\nforce_tpc\n}", `4: forward: unknown option "force_tpc" (did you mean "force_tcp"?); allowed: ` + forwardOptions},
		{"forward . 192.0.2.1 {\nforce_tcp yes\n}", `4: forward: "yes" is one argument too many after "force_tcp"; write: force_tcp`},
		{"forward . 192.0.2.1 {\npolicy rondom\n}", `4: forward policy: unknown policy "rondom" (did you mean "random"?); allowed: fastest, random, round_robin, sequential`},
		{"forward . 192.0.2.1 {\nmax_fails -1\n}", `4: forward max_fails: -1 is out of range; allowed: 0 to 2147483647`},
		{"forward . 192.0.2.1 {\nread_timeout 0s\n}", `4: forward read_timeout: 0s is out of range; allowed: 1ns to 2562047h47m16.854775807s`},
		{"forward . 192.0.2.1 {\nmax_age 9s\n}", `4: forward: max_age 9s is less than expire 10s; make it at least that`},
		{"forward . 192.0.2.1 {\nmax_rate\n}", `4: forward: an argument is missing after "max_rate"; write: max_rate QUERIES_PER_SECOND [BURST] | max_rate auto`},
		{"forward . 192.0.2.1 {\nmax_rate 0\n}", `4: forward max_rate: 0 is out of range; allowed: 1 to 10000000`},
		{"forward . 192.0.2.1 {\nmax_rate 900/s\n}", `4: forward max_rate: "900/s" is neither a number of queries per second nor auto; write: max_rate QUERIES_PER_SECOND [BURST] | max_rate auto`},
		{"forward . 192.0.2.1 {\nmax_rate 900 0\n}", `4: forward max_rate: 0 is out of range; allowed: 1 to 10000000`},
		{"forward . 192.0.2.1 {\nmax_rate 900 ten\n}", `4: forward max_rate: "ten" is not a whole number; allowed: 1 to 10000000`},
		{"forward . 192.0.2.1 {\nmax_rate auto 10\n}", `4: forward max_rate: "10" is one argument too many: max_rate auto chooses the burst itself; write: max_rate QUERIES_PER_SECOND [BURST] | max_rate auto`},
		{"forward . 192.0.2.1 {\nhealth_check 1s domain\n}", `4: forward health_check: a name is missing after "domain"; write: health_check DURATION [no_rec] [domain NAME]`},
		{"forward . 192.0.2.1 {\nhealth_check 1s norec\n}", `4: forward health_check: unknown option "norec" (did you mean "no_rec"?); allowed: domain, no_rec`},
		{"forward . 192.0.2.1 {\nexcept a..b\n}", `4: forward except: "a..b" is not a zone: not a domain name: "a..b" has an empty label`},
	} {
		t.Run(tt.text, func(t *testing.T) {
			_, err := parse(t, "\nexample.org {\n"+tt.text+"\n}\n")
			if err == nil || err.Error() != "Corefile:"+tt.want {
				t.Errorf("error %v\nwant  Corefile:%s", err, tt.want)
			}
			var f *ParseError
			if !errors.As(err, &f) || f.File != "Corefile" || f.Line < 3 || f.Word == "" && !strings.Contains(tt.text, `""`) {
				t.Errorf("fault %+v", f)
			}
		})
	}
}

// here returns the working directory.
func here(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestFileFaults looks at what is wrong with a file as a whole.
func TestFileFaults(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", `Corefile: no server block; a Corefile has at least one, such as ". { forward . /etc/resolv.conf }"`},
		{"no key", "{\nerrors\n}\n", `Corefile:1: a server block needs a zone before its "{", such as "." for all names`},
		{"open block", ". {\nerrors\n", `Corefile:2: the file ends inside a block: a closing } is missing`},
		{"open option block", ". {\ncache {\n", `Corefile:2: the file ends inside a block: a closing } is missing`},
		{"one brace too many", ". {\n}\n}\n", `Corefile:3: "}" is not a zone; is there a brace too many or too few above it?`},
		{"no space before the brace", ".:53{\nerrors\n}\n", `Corefile:1: ".:53{" is not a zone; put a space before the brace: ".:53 {"`},
		{"missing import", ". {\nimport none\n}\n", `Corefile:2: can't import "none": there is no snippet of this name, and no file ` + filepath.Join(here(t), "none")},
		{"snippet too late", ". {\nimport late\n}\n(late) {\nerrors\n}\n", `Corefile:2: File to import not found: late; write the snippet above the blocks that import it`},
		{"snippet in a circle", "(a) {\nimport b\n}\n(b) {\nimport a\n}\n. {\nimport a\n}\n", `Corefile:2: (b) imports itself`},
		{"zone twice", "a.test {\n}\nb.test a.test:53 {\n}\n", `Corefile:3: the zone a.test. on port 53 is already served by the block at Corefile:1; merge the two blocks, or bind them to different addresses`},
		{"zone twice, one bound", "a.test {\nbind 192.0.2.1\n}\na.test {\n}\n", `Corefile:4: the zone a.test. on port 53 is already served by the block at Corefile:1; merge the two blocks, or bind them to different addresses`},
		{"zone twice, an address shared", "a.test {\nbind 192.0.2.1 eth0\n}\na.test {\nbind 192.0.2.7\n}\n", `Corefile:4: the zone a.test. on port 53 is already served by the block at Corefile:1; merge the two blocks, or bind them to different addresses`},
		{"saved over each other", "a.test {\nkubernetes {\nsave /view\n}\n}\nb.test c.test:54 {\nkubernetes {\nsave //view\nlabels a=b\n}\n}\n", `Corefile:6: kubernetes save: the block at Corefile:1 saves to /view too, and watches something else; name another file`},
		{"shed with a certificate", "tls://a.test {\nshed\ntls cert key\n}\n", `Corefile:2: shed: shed is for blocks that serve plain DNS, and this one serves tls://; take it out
Corefile:3: tls: there is no file cert; mount the Secret that it is in, or name another one`},
		{"CIDR twice", "10.0.0.0/9 {\n}\n10.3.0.0/16 {\n}\n", `Corefile:3: the zone 3.10.in-addr.arpa. on port 53 is already served by the block at Corefile:1; merge the two blocks, or bind them to different addresses`},
		{"several", ". {\ncache {\nsucces 1\n}\nerors\nforward . x! {\nexpire 1\n}\n}\n", `Corefile:3: cache: unknown option "succes" (did you mean "success"?); allowed: denial, disable, keepttl, nxdomain_cut, prefetch, serve_stale, serve_stale_policy, servfail, success
Corefile:5: unknown directive "erors" (did you mean "errors"?); allowed: ` + allDirectives() + `
Corefile:6: forward: "x!" is neither an IP address, nor the name of a server, nor a file that exists; write IP, NAME, or one of them with :PORT
Corefile:7: forward expire: "1" is not a duration such as 500ms, 30s or 1m30s`},
		{"once for two ports", "a.test:53 b.test:54 {\nbufsize 1\n}\n", `Corefile:2: bufsize: 1 is out of range; allowed: 512 to 65535`},
		{"many forwards", ". {\n" + strings.Repeat("forward . 192.0.2.1\n", maxForwards+1) + "}\n", `Corefile:102: forward: a block has more than 100 forwards; write a server block for each zone`},
		{"long word", strings.Repeat("a", maxWord+1), `Corefile:1: a word is longer than 16384 bytes; is a closing quote missing?`},
		{"large file", strings.Repeat("#\n", maxFile), `Corefile: the file is larger than 1048576 bytes; a Corefile is not`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := parse(t, tt.text); err == nil || err.Error() != tt.want {
				t.Errorf("error %v\nwant  %s", err, tt.want)
			}
		})
	}
}

func TestManyFaults(t *testing.T) {
	_, err := parse(t, ". {\n"+strings.Repeat("bufsize 1\n", 100)+"}\n")
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != maxErrors+1 || lines[maxErrors] != "Corefile: there are more errors; fix these first" {
		t.Errorf("%d lines, the last is %q", len(lines), lines[len(lines)-1])
	}
}

// TestImportBounds holds that a Corefile can't grow without bound by its imports.
func TestImportBounds(t *testing.T) {
	folder := t.TempDir()
	for _, tt := range []struct{ name, text, want string }{
		{"circle", "errors\nimport circle\n", filepath.Join(folder, "circle") + ":2: " + filepath.Join(folder, "circle") + " imports itself"},
		{"large", strings.Repeat("#", maxFile+1), `Corefile:2: can't import "` + folder + `/large": ` + folder + `/large is larger than 1048576 bytes`},
		{"bombs", strings.Repeat("import "+folder+"/bomb\n", 100), folder + "/bomb:1: the Corefile has more than 200000 words with its imports in place"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			write(t, folder, "bomb", strings.Repeat("errors ", 3000))
			write(t, folder, tt.name, tt.text)
			if _, err := parse(t, ". {\nimport "+folder+"/"+tt.name+"\n}\n"); err == nil || err.Error() != tt.want {
				t.Errorf("error %v\nwant  %s", err, tt.want)
			}
		})
	}
	deep := t.TempDir()
	for i := range 100 {
		write(t, deep, fmt.Sprint(i), fmt.Sprintf("import %d\n", i+1))
	}
	if _, err := parse(t, ". {\nimport "+deep+"/0\n}\n"); err == nil || !strings.HasSuffix(err.Error(), ": imports are nested more than 64 deep") {
		t.Errorf("error %v", err)
	}
}

// parseBlock reads a block of all names with the directives text.
func parseBlock(text string) (*Config, error) {
	return Parse(Source{Text: []byte(". {\n" + text + "\n}\n")})
}

// wantFaults holds that directives, each text in a block of its own, have errors with these texts.
func wantFaults(t *testing.T, faults map[string]string) {
	t.Helper()
	for text, want := range faults {
		if _, err := parseBlock(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, want %q", text, err, want)
		}
	}
}
