package kubectl

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/nodens-dns/nodens/internal/report"
)

// podTemplate is where a kind of workload has its pod template.
type podTemplate struct {
	resource string // kubectl's name of the kind
	fields   []string
}

// podTemplates are the kinds whose pod templates can be changed.
var podTemplates = map[string]podTemplate{
	"Deployment":  {"deployments.apps", []string{"spec", "template"}},
	"StatefulSet": {"statefulsets.apps", []string{"spec", "template"}},
	"DaemonSet":   {"daemonsets.apps", []string{"spec", "template"}},
	"CronJob":     {"cronjobs.batch", []string{"spec", "jobTemplate", "spec", "template"}},
}

// NdotsPatch sets the option ndots in a workload's pod template, and leaves the other options as they are. It is made by
// [Cluster.NdotsPatch].
type NdotsPatch struct {
	// Before and After are the options, as in a resolv.conf.
	Before, After []string

	of     Cluster
	object string
	body   []byte
}

// dnsOption is an option of a dnsConfig. Value is nil for an option without a value.
type dnsOption struct {
	Name  string  `json:"name"`
	Value *string `json:"value,omitempty"`
}

// NdotsPatch returns the patch of w's pod template, after reading it. The patch is for this version of the object.
func (c *Cluster) NdotsPatch(ctx context.Context, w *report.AdvisedWorkload, ndots int) (*NdotsPatch, error) {
	t, ok := podTemplates[w.WorkloadKind]
	if !ok {
		return nil, fmt.Errorf("the pod template of the %s %s/%s can't be changed: write the option into the manifest from which it is made", w.WorkloadKind, w.Namespace, w.Workload)
	}
	p := &NdotsPatch{of: *c, object: t.resource + "/" + w.Workload}
	p.of.Namespace = w.Namespace
	out, _, err := p.of.run(ctx, limits{listTime, replyBytes}, nil, "get", p.object, "-o", "json")
	if err != nil {
		return nil, fmt.Errorf("reading %s %s/%s: %w", w.WorkloadKind, w.Namespace, w.Workload, err)
	}
	version, options, err := t.read(out)
	if err != nil {
		return nil, fmt.Errorf("kubectl printed no %s: %w", w.WorkloadKind, err)
	}
	p.Before = texts(options)
	value := strconv.Itoa(ndots)
	options = append(slices.DeleteFunc(options, func(o dnsOption) bool { return o.Name == "ndots" }), dnsOption{"ndots", &value})
	p.After = texts(options)
	// The resource version makes the API server refuse the patch if the object has changed since.
	body := map[string]any{"spec": map[string]any{"dnsConfig": map[string]any{"options": options}}}
	for _, field := range slices.Backward(t.fields) {
		body = map[string]any{field: body}
	}
	body["metadata"] = map[string]any{"resourceVersion": version}
	p.body, err = json.Marshal(body)
	return p, err
}

// read returns the object's resource version, and the options in its pod template.
func (t *podTemplate) read(object []byte) (version string, options []dnsOption, err error) {
	var o struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal(object, &o); err != nil {
		return "", nil, err
	}
	for _, field := range t.fields {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(object, &fields); err != nil {
			return "", nil, err
		}
		object = fields[field]
	}
	var template struct {
		Spec struct{ DNSConfig struct{ Options []dnsOption } }
	}
	err = json.Unmarshal(object, &template)
	return o.Metadata.ResourceVersion, template.Spec.DNSConfig.Options, err
}

func texts(options []dnsOption) (list []string) {
	for _, o := range options {
		text := o.Name
		if o.Value != nil {
			text += ":" + *o.Value
		}
		list = append(list, text)
	}
	return list
}

// Apply makes the change; with dryRun the API server only checks it.
func (p *NdotsPatch) Apply(ctx context.Context, dryRun bool) error {
	mode := "none"
	if dryRun {
		mode = "server"
	}
	_, _, err := p.of.run(ctx, limits{listTime, replyBytes}, nil, "patch", p.object, "--type=merge", "--field-manager=kubectl-nodens", "--dry-run="+mode, "--output=name", "--patch="+string(p.body))
	if err != nil {
		return fmt.Errorf("patching %s: %w", p.object, err)
	}
	return nil
}
