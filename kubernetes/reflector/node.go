package reflector

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// getNodeTimeout bounds one GetNode.
const getNodeTimeout = 2 * time.Second

// acceptMetadata is the Accept header that asks for objects without spec and status.
const acceptMetadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
	"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// acceptMetadataList is acceptMetadata for lists, for which the server refuses that.
var acceptMetadataList = strings.ReplaceAll(acceptMetadata, "PartialObjectMetadata", "PartialObjectMetadataList")

// acceptNode is the Accept header that asks for a whole Node.
const acceptNode = "application/vnd.kubernetes.protobuf,application/json"

// GetNode returns the metadata of a Node. core is a client of the core group. It blocks for
// 2 s at most. Errors name the node; an error status of the server is a
// [k8s.io/apimachinery/pkg/api/errors.APIStatus] in their chain.
func GetNode(ctx context.Context, core rest.Interface, name string) (*metav1.PartialObjectMetadata, error) {
	f := decoder{metadata: true, newObject: func() runtime.Object { return &metav1.PartialObjectMetadata{} }}
	obj, err := getNode(ctx, core, name, acceptMetadata, &f)
	if err != nil {
		return nil, err
	}
	node, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return nil, fmt.Errorf("getting the node %s: the reply is a %T", name, obj)
	}
	return node, nil
}

// GetNodePodCIDRs returns the podCIDRs of a Node, nil if it has none. It reads the whole Node,
// some 20 KB, because only metadata can be had alone; otherwise it is like [GetNode].
func GetNodePodCIDRs(ctx context.Context, core rest.Interface, name string) ([]string, error) {
	f := decoder{newObject: func() runtime.Object { return &corev1.Node{} }}
	obj, err := getNode(ctx, core, name, acceptNode, &f)
	if err != nil {
		return nil, err
	}
	node, ok := obj.(*corev1.Node)
	switch {
	case !ok:
		return nil, fmt.Errorf("getting the node %s: the reply is a %T", name, obj)
	case len(node.Spec.PodCIDRs) == 0 && node.Spec.PodCIDR != "":
		return []string{node.Spec.PodCIDR}, nil
	}
	return node.Spec.PodCIDRs, nil
}

// getNode gets a Node in the form that accept asks for, and decodes it with f.
func getNode(ctx context.Context, core rest.Interface, name, accept string, f *decoder) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, getNodeTimeout)
	defer cancel()
	body, err := core.Get().Resource("nodes").Name(name).SetHeader("Accept", accept).MaxRetries(0).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("getting the node %s: %w", name, err)
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, maxEventBytes))
	if err != nil {
		return nil, fmt.Errorf("getting the node %s: %w", name, err)
	}
	f.acquire()
	obj, err := f.decode(data)
	if err != nil {
		return nil, fmt.Errorf("getting the node %s: %w", name, err)
	}
	return obj, nil
}
