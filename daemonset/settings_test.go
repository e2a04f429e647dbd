package daemonset

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSettings: the image, the addresses and the runbooks' page are set in settings alone.
func TestSettings(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	const file = "settings/kustomization.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changes := map[string]string{
		"newName: nodens":               "newName: registry.example/dns/nodens\n    newTag: 1.2.3",
		"localDNS=" + localIP:           "localDNS=169.254.25.10",
		"localDNS6=fd00:169:254:20::10": "localDNS6=fd00::53",
		"clusterDNS=" + kubeDNS:         "clusterDNS=172.20.0.10",
		"runbookURL=https://github.com/nodens-dns/nodens/blob/main/docs/reference/alerts.md": "runbookURL=https://wiki.example/dns",
	}
	changed := string(text)
	for old, replaced := range changes {
		if strings.Count(changed, old+"\n") != 1 {
			t.Errorf("%s does not have one line %q", file, old)
		}
		changed = strings.Replace(changed, old+"\n", replaced+"\n", 1)
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	const image, local = "image: registry.example/dns/nodens:1.2.3\n", "169.254.25.10"
	tests := map[string]map[string]int{ // texts and how often each occurs
		"base":                    {image: 1, "- " + local + "\n": 1, "host: " + local + "\n": 2},
		"overlays/link-local":     {image: 1, "- " + local + "\n": 1, "host: " + local + "\n": 2},
		"overlays/first-rollout":  {image: 1, "- " + local + "\n": 1, "host: " + local + "\n": 2},
		"overlays/nftables":       {image: 1, "- " + local + "\n": 1, "host: " + local + "\n": 2},
		"overlays/seccomp":        {image: 1, "- " + local + "\n": 1, "host: " + local + "\n": 2},
		"overlays/kernel-path":    {image: 1, "- " + local + "\n": 1, "host: " + local + "\n": 2},
		"overlays/host":           {image: 1, "- " + local + "\n": 1, "host: " + local + "\n": 2},
		"overlays/host-remove":    {image: 1, "- " + local + "\n": 1, "host: " + local + "\n": 2},
		"overlays/takeover":       {image: 1, "- " + local + ",172.20.0.10\n": 1, "host: " + local + "\n": 2},
		"overlays/dual-stack":     {image: 1, "- " + local + ",fd00::53\n": 1, "host: " + local + "\n": 2},
		"overlays/cilium":         {image: 1},
		"overlays/node-condition": {image: 1, "- " + local + "\n": 1, "host: " + local + "\n": 2},
		"overlays/dns-policy":     {image: 1, "- " + local + "\n": 1, "host: " + local + "\n": 2},
		"overlays/opt-in":         {image: 1, "- " + local + "\n": 1, "host: " + local + "\n": 2, "''" + local + "'', ''172.20.0.10''": 1},
		"cleanup":                 {image: 2, "- " + local + "\n": 1},
		"network-policy":          {"cidr: " + local + "/32\n": 1},
		"monitoring":              {"runbook_url: https://wiki.example/dns#nodens": strings.Count(string(readFile(t, "monitoring/rules.yaml")), "runbook_url:")},
	}
	dirs, err := filepath.Glob("overlays/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, overlay := range dirs {
		if tests[overlay] == nil {
			t.Errorf("%s is not in this table", overlay)
		}
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			out, err := runTool(t, "kubectl", "kustomize", filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			got := make(map[string]int)
			for part := range want {
				got[part] = strings.Count(string(out), part)
			}
			if !maps.Equal(got, want) {
				t.Errorf("occurrences %v, want %v", got, want)
			}
			for _, old := range []string{localIP, kubeDNS, "fd00:169:254", "nodens:0.1.0", "github.com", "nodens-settings"} {
				if strings.Contains(string(out), old) {
					t.Errorf("%s contains %s", name, old)
				}
			}
		})
	}
}

// TestOwnKustomization: components combine, and a kustomization outside of this repository sets the addresses.
func TestOwnKustomization(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "nodens/daemonset"), os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	const begin = "## A kustomization of your own\n"
	_, guide, ok := strings.Cut(string(readFile(t, "../docs/how-to/install.md")), begin)
	if !ok {
		t.Fatalf("the guide has no section %q", begin)
	}
	_, example, _ := strings.Cut(guide, "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	// The example names a release on GitHub.
	example = strings.NewReplacer("https://github.com/nodens-dns/nodens//daemonset/", "../nodens/daemonset/", "?ref=v0.1.0", "").Replace(example)
	if err := os.Mkdir(filepath.Join(dir, "mine"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mine/kustomization.yaml"), []byte(example), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := runTool(t, "kubectl", "kustomize", filepath.Join(dir, "mine"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"- 169.254.25.10,10.43.0.10,fd00:169:254:20::10\n", "host: 169.254.25.10\n", "- -takeover-service=kube-dns\n", "- -kernel-path=auto\n",
		"- BPF\n", "image: YOUR-REGISTRY/nodens:0.1.0\n", "ipFamilyPolicy: PreferDualStack\n",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the example's objects lack %q:\n%s", want, out)
		}
	}
}

// TestSettingsDefaults: with the settings as they are, the folders render the plain files.
func TestSettingsDefaults(t *testing.T) {
	for dir, file := range map[string]string{
		"cleanup": "cleanup.yaml", "network-policy": "network-policy.yaml", "monitoring": "monitoring/rules.yaml",
	} {
		t.Run(dir, func(t *testing.T) {
			plain := readFile(t, file)
			if dir == "monitoring" {
				plain = append(append(plain, "---\n"...), readFile(t, "monitoring/podmonitor.yaml")...)
			}
			want, err := decodeObjects(plain)
			if err != nil {
				t.Fatal(err)
			}
			text, err := runTool(t, "kubectl", "kustomize", dir)
			if err != nil {
				t.Fatal(err)
			}
			got, err := decodeObjects(text)
			if err != nil {
				t.Fatal(err)
			}
			compareObjects(t, want, got)
		})
	}
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
