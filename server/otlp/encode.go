package otlp

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"

	collectorpb "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// scopeName is the name of the instrumentation scope.
const scopeName = "github.com/nodens-dns/nodens"

// encode returns the message for a batch of traces, each with an identity of its own.
func encode(resource []Attr, batch []*Span) ([]byte, error) {
	var spans []*tracepb.Span
	for _, s := range batch {
		trace := randomID(16)
		spans = appendSpan(spans, s, trace, nil)
	}
	return proto.Marshal(&collectorpb.ExportTraceServiceRequest{ResourceSpans: []*tracepb.ResourceSpans{{
		Resource:   &resourcepb.Resource{Attributes: keyValues(resource)},
		ScopeSpans: []*tracepb.ScopeSpans{{Scope: &commonpb.InstrumentationScope{Name: scopeName}, Spans: spans}},
	}}})
}

// appendSpan appends s and its children, in the trace with this identity.
func appendSpan(list []*tracepb.Span, s *Span, trace, parent []byte) []*tracepb.Span {
	p := &tracepb.Span{
		TraceId: trace, SpanId: randomID(8), ParentSpanId: parent, Name: s.Name, Kind: tracepb.Span_SpanKind(s.Kind),
		StartTimeUnixNano: uint64(s.Start.UnixNano()), EndTimeUnixNano: uint64(s.End.UnixNano()), Attributes: keyValues(s.Attrs),
		Flags: uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK), // its parent is in the same process
	}
	if s.Err != "" {
		p.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: valid(s.Err)}
	}
	list = append(list, p)
	for _, c := range s.Children {
		list = appendSpan(list, c, trace, p.GetSpanId())
	}
	return list
}

// randomID returns n random bytes, a multiple of 8, that are not all zero.
func randomID(n int) []byte {
	b := make([]byte, 0, n)
	for len(b) < n {
		b = binary.BigEndian.AppendUint64(b, max(1, rand.Uint64())) //nolint:gosec // an identity needs no secret
	}
	return b
}

func keyValues(attrs []Attr) []*commonpb.KeyValue {
	list := make([]*commonpb.KeyValue, len(attrs))
	for i, a := range attrs {
		list[i] = &commonpb.KeyValue{Key: a.Key, Value: anyValue(a.value)}
	}
	return list
}

// valid returns a text that protobuf takes.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

func anyValue(v any) *commonpb.AnyValue {
	switch v := v.(type) {
	case int64:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: v}}
	case float64:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: v}}
	case bool:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: v}}
	case string:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: valid(v)}}
	}
	return nil
}

// rejected returns how many spans the collector says it has rejected, in its reply to a batch. It is 0 for a body that is
// no such reply.
func rejected(body []byte) (spans int64, why string) {
	var reply collectorpb.ExportTraceServiceResponse
	if proto.Unmarshal(body, &reply) != nil {
		return 0, ""
	}
	partial := reply.GetPartialSuccess()
	return max(0, partial.GetRejectedSpans()), partial.GetErrorMessage()
}
