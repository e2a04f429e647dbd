package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/test/prometheus"
)

// metaPrefix is what the names of all labels begin with that tell of a target's objects.
const metaPrefix = "__meta_kubernetes_"

// writeTargets has the job read from a file what it would ask the cluster for, since Debian
// builds its Prometheus without Kubernetes: the targets of the roles pod and endpoints, and
// their labels, as Prometheus' documentation lists them. What the job makes of them, its
// relabelling, is Prometheus' own.
func writeTargets(ctx context.Context, s *suite, dir string, job *prometheus.ScrapeConfig) error {
	client, err := kubernetes.NewForConfig(s.cluster.Config())
	if err != nil {
		return err
	}
	var all []prometheus.StaticConfig
	for _, d := range job.Kubernetes {
		namespaces := []string{metav1.NamespaceAll}
		if d.Namespaces != nil {
			namespaces = d.Namespaces.Names
		}
		for _, ns := range namespaces {
			targets, err := roleTargets[d.Role](ctx, client, ns)
			if err != nil {
				return fmt.Errorf("targets of %s: %w", job.Name, err)
			}
			all = append(all, targets...)
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, prometheus.SanitizeLabel(job.Name)+".json")
	job.Kubernetes, job.Files = nil, []prometheus.FileDiscovery{{Names: []string{file}}}
	return os.WriteFile(file, text, 0o644)
}

// roleTargets give the targets of a role in a namespace.
var roleTargets = map[string]func(context.Context, kubernetes.Interface, string) ([]prometheus.StaticConfig, error){
	"pod": podTargets, "endpoints": endpointTargets,
}

// podTargets is one for each port that a container declares, and for each container that
// declares none, without a port in its address.
func podTargets(ctx context.Context, client kubernetes.Interface, ns string) ([]prometheus.StaticConfig, error) {
	pods, err := client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var all []prometheus.StaticConfig
	for _, p := range pods.Items {
		if p.Status.PodIP == "" {
			continue
		}
		for _, c := range p.Spec.Containers {
			labels := podLabels(&p)
			labels[metaPrefix+"pod_container_name"] = c.Name
			if len(c.Ports) == 0 {
				all = append(all, prometheus.StaticConfig{Targets: []string{p.Status.PodIP}, Labels: labels})
			}
			for _, port := range c.Ports {
				labels := maps.Clone(labels)
				labels[metaPrefix+"pod_container_port_name"] = port.Name
				labels[metaPrefix+"pod_container_port_number"] = fmt.Sprint(port.ContainerPort)
				labels[metaPrefix+"pod_container_port_protocol"] = string(port.Protocol)
				at := net.JoinHostPort(p.Status.PodIP, fmt.Sprint(port.ContainerPort))
				all = append(all, prometheus.StaticConfig{Targets: []string{at}, Labels: labels})
			}
		}
	}
	return all, nil
}

func podLabels(p *corev1.Pod) map[string]string {
	labels := map[string]string{
		metaPrefix + "namespace":     p.Namespace,
		metaPrefix + "pod_name":      p.Name,
		metaPrefix + "pod_ip":        p.Status.PodIP,
		metaPrefix + "pod_host_ip":   p.Status.HostIP,
		metaPrefix + "pod_node_name": p.Spec.NodeName,
		metaPrefix + "pod_phase":     string(p.Status.Phase),
	}
	addMetadata(labels, "pod", p)
	return labels
}

// addMetadata adds target labels for an object's labels and annotations.
func addMetadata(labels map[string]string, kind string, o metav1.Object) {
	for what, values := range map[string]map[string]string{"label": o.GetLabels(), "annotation": o.GetAnnotations()} {
		for k, v := range values {
			labels[metaPrefix+kind+"_"+what+"_"+prometheus.SanitizeLabel(k)] = v
			labels[metaPrefix+kind+"_"+what+"present_"+prometheus.SanitizeLabel(k)] = "true"
		}
	}
}

// endpointTargets is one for each port of each address behind a Service, with the labels of
// the Service and of the pod.
func endpointTargets(ctx context.Context, client kubernetes.Interface, ns string) ([]prometheus.StaticConfig, error) {
	services, err := client.CoreV1().Services(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	list, err := client.DiscoveryV1().EndpointSlices(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pods, err := client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	byUID := make(map[types.UID]*corev1.Pod)
	for i := range pods.Items {
		byUID[pods.Items[i].UID] = &pods.Items[i]
	}
	var all []prometheus.StaticConfig
	for _, service := range services.Items {
		for _, slice := range list.Items {
			if slice.Namespace == service.Namespace && slice.Labels[discoveryv1.LabelServiceName] == service.Name {
				all = append(all, sliceTargets(&service, &slice, byUID)...)
			}
		}
	}
	return all, nil
}

// sliceTargets are the targets of one of the Service's slices.
func sliceTargets(service *corev1.Service, slice *discoveryv1.EndpointSlice, pods map[types.UID]*corev1.Pod) (all []prometheus.StaticConfig) {
	for _, e := range slice.Endpoints {
		labels := map[string]string{metaPrefix + "namespace": service.Namespace, metaPrefix + "service_name": service.Name}
		addMetadata(labels, "service", service)
		if e.TargetRef != nil && pods[e.TargetRef.UID] != nil {
			maps.Copy(labels, podLabels(pods[e.TargetRef.UID]))
		}
		for _, port := range slice.Ports {
			for _, a := range e.Addresses {
				at := net.JoinHostPort(a, fmt.Sprint(*port.Port))
				all = append(all, prometheus.StaticConfig{Targets: []string{at}, Labels: labels})
			}
		}
	}
	return all
}
