package reflector

import (
	"context"
	"fmt"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// getNodeTimeout bounds one GetNode.
const getNodeTimeout = 2 * time.Second

// acceptMetadata is the Accept header that asks for objects without spec and status.
const acceptMetadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
	"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// GetNode returns the metadata of a Node. core is a client of the core group. It blocks for
// 2 s at most. Errors name the node; an error status of the server is a
// [k8s.io/apimachinery/pkg/api/errors.APIStatus] in their chain.
func GetNode(ctx context.Context, core rest.Interface, name string) (*metav1.PartialObjectMetadata, error) {
	ctx, cancel := context.WithTimeout(ctx, getNodeTimeout)
	defer cancel()
	body, err := core.Get().Resource("nodes").Name(name).SetHeader("Accept", acceptMetadata).MaxRetries(0).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("getting the node %s: %w", name, err)
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, maxEventBytes))
	if err != nil {
		return nil, fmt.Errorf("getting the node %s: %w", name, err)
	}
	f := decoder{metadata: true, newObject: func() runtime.Object { return &metav1.PartialObjectMetadata{} }}
	f.acquire()
	obj, err := f.decode(data)
	if err != nil {
		return nil, fmt.Errorf("getting the node %s: %w", name, err)
	}
	node, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return nil, fmt.Errorf("getting the node %s: the reply is a %T", name, obj)
	}
	return node, nil
}
