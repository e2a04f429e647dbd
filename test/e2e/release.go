package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
)

// releaseTest is the state of the part release: two versions are released into a registry, and
// installed from there as users do.
type releaseTest struct {
	chaosTest
	runner guideRunner
	// program is the command daemonset/release, and key and public are the files of the key that
	// signs.
	program, key, public string
	// digests are the images', by version.
	digests map[string]string
}

// released are the versions; the second one differs in nothing but its name.
var released = []string{"0.1.0", "0.1.1"}

// charts is the chart's place in the registry.
const charts = cluster.Registry + "/charts"

// releases returns the checks of the part release.
func releases() []check {
	t := &releaseTest{digests: make(map[string]string)}
	list := append(t.installChecks(), check{"pods query the agents", t.setUp})
	upgrade := fault{"", [2]lossLimit{lossless, lossless}, nil}
	for _, c := range []struct{ name, line, version string }{
		{"helm upgrade to the next version under load", "helm upgrade " + t.chart(released[1]), released[1]},
		{"helm rollback under load", "helm rollback node-local-dns 1 --namespace kube-system", released[0]},
	} {
		list = append(list, check{c.name, func(ctx context.Context, _ *suite) (string, error) {
			if t.api == nil {
				return "", errNoLoadPods
			}
			perNode, err := t.underLoad(ctx, func(ctx context.Context) (map[string]podKill, error) {
				return nil, t.roll(ctx, t.suite, c.line, c.version)
			})
			if err != nil {
				return "", err
			}
			return upgrade.checkLosses(perNode)
		}})
	}
	return list
}

// installChecks returns the checks after which the first version runs.
func (t *releaseTest) installChecks() []check {
	return []check{
		{"two versions are made, signed and checked", t.make},
		{"a registry has images, signatures and charts", t.push},
		{"the chart of the registry installs the image by its digest", t.install},
	}
}

// chart returns helm's arguments for a version in the registry.
func (t *releaseTest) chart(version string) string {
	return "node-local-dns oci://" + charts + "/nodens --version " + version + " --plain-http --namespace kube-system"
}

// make makes both releases of a copy of the tree, for this machine's processor.
func (t *releaseTest) make(ctx context.Context, s *suite) (string, error) {
	if err := t.runner.prepare(ctx, s); err != nil {
		return "", err
	}
	t.program, t.key, t.public = filepath.Join(s.dir, "release"), filepath.Join(s.dir, "key.pem"), filepath.Join(s.dir, "public.pem")
	var changes strings.Builder
	for _, version := range released {
		fmt.Fprintf(&changes, "## [%s] - 2026-12-01\n\n### Changed\n\n- The version.\n\n", version)
	}
	if err := os.WriteFile(filepath.Join(t.runner.tree, "CHANGELOG.md"), []byte(changes.String()), 0o644); err != nil {
		return "", err
	}
	lines := []string{
		"openssl ecparam -name prime256v1 -genkey -noout -out " + t.key, "openssl ec -in " + t.key + " -pubout -out " + t.public,
		"go -C daemonset/release build -o " + t.program + " .",
		"git init -q", "git config user.email test@example.test", "git config user.name test", "git add -A -f",
	}
	for _, version := range released {
		lines = append(lines, "git commit -q --allow-empty -m "+version, "git tag v"+version,
			fmt.Sprintf("cd daemonset/release; %s make -version %s -platforms linux/%s -image %s/nodens -key %s -out %s",
				t.program, version, runtime.GOARCH, cluster.Registry, t.key, t.dir(s, version)),
			t.program+" verify -key "+t.public+" "+t.dir(s, version))
	}
	for _, line := range lines {
		cmd := exec.CommandContext(ctx, "sh", "-c", line)
		if err := t.runner.run(cmd); err != nil {
			return "", fmt.Errorf("%s: %w", line, err)
		}
	}
	return strings.Join(released, " and "), nil
}

// dir is the directory of a release.
func (t *releaseTest) dir(s *suite, version string) string {
	return filepath.Join(s.dir, "release-"+version)
}

// push copies both releases to a registry in the cluster's network.
func (t *releaseTest) push(ctx context.Context, s *suite) (string, error) {
	if err := s.cluster.StartRegistry(ctx, t.program); err != nil {
		return "", err
	}
	for _, version := range released {
		out, err := t.runner.runShell(ctx, s, t.program+" push -key "+t.public+" -charts "+charts+" "+t.dir(s, version))
		if err != nil {
			return "", err
		}
		_, rest, _ := strings.Cut(out, "\nimage "+cluster.Registry+"/nodens@")
		t.digests[version], _, _ = strings.Cut(rest, "\n")
	}
	return cluster.Registry, nil
}

// install installs the first version.
func (t *releaseTest) install(ctx context.Context, s *suite) (string, error) {
	err := t.roll(ctx, s, "helm install "+t.chart(released[0]), released[0])
	s.agent = err == nil
	return t.digests[released[0]], err
}

// roll runs helm, and waits until only agents of that version's image run.
func (t *releaseTest) roll(ctx context.Context, s *suite, line, version string) error {
	const status = " && kubectl --namespace kube-system rollout status daemonset/node-local-dns --timeout=3m"
	if _, err := t.runner.runShell(ctx, s, line+" >&2"+status); err != nil {
		return err
	}
	images, err := s.cluster.Kubectl(ctx, "", "get", "pods", "--namespace="+agentNamespace, "--selector=k8s-app=node-local-dns",
		"--field-selector=status.phase=Running", "--output=jsonpath={range .items[*]}{.status.containerStatuses[0].imageID}{\"\\n\"}{end}")
	if err != nil {
		return err
	}
	want := cluster.Registry + "/nodens@" + t.digests[version]
	for image := range strings.FieldsSeq(images) {
		if image != want {
			return fmt.Errorf("a pod runs %s, want %s", image, want)
		}
	}
	return nil
}
