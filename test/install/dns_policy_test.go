package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	client "k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// policyAPI writes DNSPolicies.
type policyAPI struct{ admin *client.Clientset }

// create creates a policy in the namespace default with that spec, in JSON.
func (p policyAPI) create(ctx context.Context, name, spec string) error {
	body := fmt.Sprintf(`{"apiVersion": "nodens.dev/v1alpha1", "kind": "DNSPolicy", "metadata": {"name": %q}, "spec": %s}`, name, spec)
	return p.admin.RESTClient().Post().AbsPath("/apis/nodens.dev/v1alpha1/namespaces/default/dnspolicies").
		SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(ctx).Error()
}

func (p policyAPI) remove(ctx context.Context, name string) error {
	return p.admin.RESTClient().Delete().AbsPath("/apis/nodens.dev/v1alpha1/namespaces/default/dnspolicies", name).Do(ctx).Error()
}

// TestDNSPolicy: the API server takes and refuses policies as the schema says, and an agent with the rights of the overlay dns-policy
// enforces them.
func TestDNSPolicy(t *testing.T) {
	server := apiserver.Start(t)
	admin, err := server.Client()
	check.NoError(t, err)
	applyOverlay(t, server, "dns-policy", nil)
	policies := policyAPI{admin}
	err = peer.Await(t.Context(), "the definition", func(ctx context.Context) error { return policies.create(ctx, "first", `{"podSelector": {}}`) })
	check.NoError(t, err)
	check.NoError(t, policies.remove(t.Context(), "first"))
	t.Run("schema", func(t *testing.T) { testPolicySchema(t, policies) })
	t.Run("agent", func(t *testing.T) { testPolicyOfAgent(t, server, policies) })
}

func testPolicySchema(t *testing.T, policies policyAPI) {
	label := strings.Repeat("a", 63)
	names := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"n%d.example.com", `, i)
		}
		return "[" + strings.TrimSuffix(b.String(), ", ") + "]"
	}
	for name, c := range map[string]struct{ spec, refusal string }{
		"all fields":                {`{"podSelector": {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}, {"key": "c", "operator": "Exists"}]}, "mode": "Audit", "default": "Deny", "allow": ["api.example.com", "*.example.com.", "_srv.example.com", "API.example.com", "localhost"], "deny": ["*.evil.test"], "allowServices": [{"namespace": "shop"}, {"name": "web"}], "deniedReply": "NXDomain", "egressSet": true}`, ""},
		"longest name":              {`{"podSelector": {}, "allow": ["` + strings.Repeat(label+".", 3) + strings.Repeat("b", 61) + `"]}`, ""},
		"as many names as possible": {`{"podSelector": {}, "allow": ` + names(10_000) + `}`, ""},
		"no selector":               {`{}`, "spec.podSelector"},
		"no spec":                   {`null`, "spec"},
		"mode":                      {`{"podSelector": {}, "mode": "Warn"}`, "spec.mode"},
		"default":                   {`{"podSelector": {}, "default": "Log"}`, "spec.default"},
		"denied reply":              {`{"podSelector": {}, "deniedReply": "Drop"}`, "spec.deniedReply"},
		"set":                       {`{"podSelector": {}, "egressSet": "yes"}`, "spec.egressSet"},
		"allow without effect":      {`{"podSelector": {}, "default": "Allow", "allow": ["a.test"]}`, "allow and allowServices have no effect"},
		"Service without effect":    {`{"podSelector": {}, "default": "Allow", "allowServices": [{"name": "a"}]}`, "allow and allowServices have no effect"},
		"default Allow":             {`{"podSelector": {}, "default": "Allow", "allow": [], "deny": ["a.test"]}`, ""},
		"too many names":            {`{"podSelector": {}, "allow": ` + names(6000) + `, "deny": ` + names(4001) + `}`, "at most 10,000 names"},
		"wildcard inside":           {`{"podSelector": {}, "allow": ["a.*.test"]}`, "spec.allow[0]"},
		"wildcard alone":            {`{"podSelector": {}, "allow": ["*"]}`, "spec.allow[0]"},
		"wildcard in a label":       {`{"podSelector": {}, "allow": ["a*.test"]}`, "spec.allow[0]"},
		"regular expression":        {`{"podSelector": {}, "deny": [".*evil.*"]}`, "spec.deny[0]"},
		"empty name":                {`{"podSelector": {}, "deny": [""]}`, "spec.deny[0]"},
		"empty label":               {`{"podSelector": {}, "allow": ["a..test"]}`, "spec.allow[0]"},
		"two dots at the end":       {`{"podSelector": {}, "allow": ["a.test.."]}`, "spec.allow[0]"},
		"long label":                {`{"podSelector": {}, "allow": ["` + label + `a.test"]}`, "spec.allow[0]"},
		"long name":                 {`{"podSelector": {}, "allow": ["` + strings.Repeat(label+".", 3) + strings.Repeat("b", 62) + `"]}`, "spec.allow[0]"},
		"address with a port":       {`{"podSelector": {}, "allow": ["a.test:53"]}`, "spec.allow[0]"},
		"operator":                  {`{"podSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}`, "operator"},
		"In without values":         {`{"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}`, "In and NotIn need values"},
		"Exists with values":        {`{"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}}`, "In and NotIn need values"},
		"name of a Service":         {`{"podSelector": {}, "allowServices": [{"name": "a.b"}]}`, "spec.allowServices[0].name"},
	} {
		t.Run(name, func(t *testing.T) {
			err := policies.create(t.Context(), "p", c.spec)
			switch {
			case err == nil && c.refusal != "":
				t.Errorf("it is accepted, want an error about %s", c.refusal)
			case err != nil && (c.refusal == "" || !strings.Contains(err.Error(), c.refusal)):
				t.Errorf("%v, want an error about %q", err, c.refusal)
			}
			if err == nil {
				check.NoError(t, policies.remove(t.Context(), "p"))
			}
		})
	}
}

// testPolicyOfAgent: a pod is bound as soon as it has the label and the policy is there, and no longer.
func testPolicyOfAgent(t *testing.T, server *apiserver.Server, policies policyAPI) {
	const podAddr = "127.0.0.7"
	ctx := t.Context()
	pod, err := policies.admin.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}, metav1.CreateOptions{})
	check.NoError(t, err)
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: podAddr, PodIPs: []corev1.PodIP{{IP: podAddr}}}
	pod, err = policies.admin.CoreV1().Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	check.NoError(t, err)
	port, err := peer.Port()
	check.NoError(t, err)
	kubeconfig := tokenKubeconfig(t, server, agentToken(t, policies.admin, "n1"))
	socket := filepath.Join(t.TempDir(), "admin.sock")
	agent := peer.StartServer(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n kubernetes cluster.local {\n  kubeconfig %s\n }\n hosts {\n  192.0.2.1 api.example.com\n  192.0.2.2 other.example.com\n  fallthrough\n }\n}\n", port, kubeconfig), peer.Command{
		Name: "nodens", Args: []string{"--node-name=n1", "--dns-policies=closed", "--admin-socket=" + socket},
	})
	await := func(what string, want map[string]string) { // rcodes by client and name
		t.Helper()
		check.NoError(t, agent.Await(ctx, what, func(context.Context) error {
			for question, rcode := range want {
				from, name, _ := strings.Cut(question, " ")
				c := dns.Client{Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}}
				m, _, err := c.ExchangeContext(ctx, new(dns.Msg).SetQuestion(name, dns.TypeA), fmt.Sprintf("127.0.0.1:%d", port))
				if err != nil {
					return err
				}
				if got := dns.RcodeToString[m.Rcode]; got != rcode {
					return errors.New(question + " is " + got + ", want " + rcode)
				}
			}
			return nil
		}))
	}
	const api, other, service = podAddr + " api.example.com.", podAddr + " other.example.com.", podAddr + " kubernetes.default.svc.cluster.local."
	const elsewhere = "127.0.0.8 other.example.com."
	await("answers without policies", map[string]string{api: "NOERROR", other: "NOERROR", service: "NOERROR", elsewhere: "NOERROR"})
	check.NoError(t, policies.create(ctx, "web", `{"podSelector": {"matchLabels": {"app": "web"}}, "allow": ["api.example.com"]}`))
	await("denials", map[string]string{api: "NOERROR", other: "REFUSED", service: "NXDOMAIN", elsewhere: "NOERROR"})
	check.NoError(t, policies.create(ctx, "services", `{"podSelector": {}, "allowServices": [{}], "deny": ["api.example.com"]}`))
	await("the sum of two policies", map[string]string{api: "REFUSED", other: "REFUSED", service: "NOERROR", elsewhere: "NOERROR"})
	out, err := exec.CommandContext(ctx, peer.Build(t, "nodens"), "policy", "--admin-socket", socket, "-o", "json").Output()
	check.NoError(t, err)
	var shown report.Policies
	check.NoError(t, json.Unmarshal(out, &shown))
	if len(shown.Pods) != 1 || shown.Pods[0].Pod != "web" || len(shown.Pods[0].Policies) != 2 || shown.Pods[0].Policies[0].Name != "services" || shown.Pods[0].Policies[0].Denied == 0 || !shown.Known || shown.Unknown != "closed" {
		t.Errorf("nodens policy prints %s", out)
	}
	check.NoError(t, policies.remove(ctx, "services"))
	pod.Labels["app"] = "db"
	pod, err = policies.admin.CoreV1().Pods("default").Update(ctx, pod, metav1.UpdateOptions{})
	check.NoError(t, err)
	await("answers after the label is gone", map[string]string{api: "NOERROR", other: "NOERROR", service: "NOERROR"})
	pod.Labels["app"] = "web"
	_, err = policies.admin.CoreV1().Pods("default").Update(ctx, pod, metav1.UpdateOptions{})
	check.NoError(t, err)
	await("denials after the label is back", map[string]string{api: "NOERROR", other: "REFUSED", service: "NXDOMAIN"})

	var took []time.Duration
	for i := range 50 {
		name := fmt.Sprint("deny", i)
		check.NoError(t, policies.create(ctx, name, `{"podSelector": {}, "deny": ["api.example.com"]}`))
		took = append(took, untilRcode(t, agent, podAddr, port, dns.RcodeRefused))
		check.NoError(t, policies.remove(ctx, name))
		took = append(took, untilRcode(t, agent, podAddr, port, dns.RcodeSuccess))
	}
	slices.Sort(took)
	t.Logf("from the API server's reply to the effect of a policy, %d changes: p50 %v, p99 %v, max %v", len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
}

// untilRcode asks from an address for api.example.com without a pause until the rcode is this one, and returns how long that takes.
func untilRcode(t *testing.T, agent *peer.Process, from string, port uint16, rcode int) time.Duration {
	t.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}).Dial("udp", fmt.Sprintf("127.0.0.1:%d", port))
	check.NoError(t, err)
	defer conn.Close()
	c, began := &dns.Conn{Conn: conn}, time.Now()
	check.NoError(t, agent.Await(t.Context(), dns.RcodeToString[rcode], func(ctx context.Context) error {
		for ctx.Err() == nil {
			if err := c.WriteMsg(new(dns.Msg).SetQuestion("api.example.com.", dns.TypeA)); err != nil {
				return err
			}
			if m, err := c.ReadMsg(); err != nil || m.Rcode == rcode {
				return err
			}
		}
		return ctx.Err()
	}))
	return time.Since(began)
}
