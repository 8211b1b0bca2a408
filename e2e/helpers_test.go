//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
)

// Annotation and value that select the routed pool of config/samples.
const (
	poolAnnotation = "holdfast.dev/pool"
	routedPool     = "routed"
)

// soon is the deadline of steps that take milliseconds on an idle machine.
const soon = 20 * time.Second

// namespace creates a namespace for a test.
func (e *env) namespace(t *testing.T) string {
	t.Helper()
	name := "e2e-" + slug(t)
	must(t, e.EnsureNamespace(t.Context(), name))
	undo(t, func(ctx context.Context) error {
		return unlessGone(e.Kube.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}))
	})
	return name
}

// undo runs a function at the end of the test, when t.Context() is cancelled already.
func undo(t *testing.T, f func(context.Context) error) {
	t.Helper()
	t.Cleanup(func() {
		t.Helper()
		if err := f(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// unlessGone is the error of a deletion, unless the object had gone before.
func unlessGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// do runs a command whose output is of no interest on a host.
func (e *env) do(ctx context.Context, host string, argv ...string) error {
	_, err := e.On(ctx, host, argv...)
	return err
}

// until waits until an object of Holdfast's passes a check, and returns it.
func until[T any](t *testing.T, objects dynamic.ResourceInterface, name, what string, check func(*T) error) *T {
	t.Helper()
	var got *T
	must(t, testbed.Until(t.Context(), soon, what, func(ctx context.Context) error {
		o, err := objects.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		got = new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, got); err != nil {
			return err
		}
		return check(got)
	}))
	return got
}

// gone waits until an object does not exist any more.
func gone[T any](ctx context.Context, what string, get func(context.Context) (T, error)) error {
	return testbed.Until(ctx, soon, "the end of "+what, func(ctx context.Context) error {
		if _, err := get(ctx); !apierrors.IsNotFound(err) {
			return cmp.Or(err, fmt.Errorf("it still exists"))
		}
		return nil
	})
}

// waitService waits until a Service of the application passes a check.
func (e *env) waitService(t *testing.T, name, what string, check func(*corev1.Service) error) {
	t.Helper()
	must(t, testbed.Until(t.Context(), soon, name+" "+what, func(ctx context.Context) error {
		s, err := e.Kube.CoreV1().Services(e.app.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return check(s)
	}))
}

// A change adjusts a Service for a test.
type change func(*corev1.Service)

// routed requests addresses from the pool that BGP advertises.
func routed(s *corev1.Service) { pool(routedPool)(s) }

func pool(name string) change { return annotation(poolAnnotation, name) }

func annotation(key, value string) change {
	return func(s *corev1.Service) { metav1.SetMetaDataAnnotation(&s.ObjectMeta, key, value) }
}

// local sets externalTrafficPolicy: Local: pods of the receiving node serve, and see the client's address.
func local(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

// create creates a Service of an application for the duration of the test.
func (e *env) create(t *testing.T, app testbed.App, name string, changes ...change) *corev1.Service {
	t.Helper()
	s := testbed.Service(app, name)
	for _, c := range changes {
		c(s)
	}
	made, err := e.Kube.CoreV1().Services(s.Namespace).Create(t.Context(), s, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { e.remove(t, s.Namespace, s.Name) })
	return made
}

// service creates a Service and waits for its two addresses.
func (e *env) service(t *testing.T, app testbed.App, name string, changes ...change) []netip.Addr {
	t.Helper()
	s := e.create(t, app, name, changes...)
	addresses, err := e.WaitAddresses(t.Context(), s.Namespace, s.Name, 2)
	must(t, err)
	return addresses
}

// remove deletes a Service, if it exists, and waits for the end of the deletion.
func (e *env) remove(t *testing.T, namespace, name string) {
	t.Helper()
	ctx := context.Background() // also used after t.Context() is cancelled
	services := e.Kube.CoreV1().Services(namespace)
	err := services.Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return
	}
	if err != nil {
		t.Error(err)
		return
	}
	get := func(ctx context.Context) (*corev1.Service, error) {
		return services.Get(ctx, name, metav1.GetOptions{})
	}
	if err := gone(ctx, "Service "+name, get); err != nil {
		t.Error(err)
	}
}

// apply applies YAML, and deletes it at the end of the test.
func (e *env) apply(t *testing.T, text string) {
	t.Helper()
	must(t, e.Apply(t.Context(), "", []byte(text)))
	undo(t, func(ctx context.Context) error { return e.Delete(ctx, "", []byte(text)) })
}

// waitCondition waits until a condition of a Service has a status and a reason.
func (e *env) waitCondition(
	t *testing.T,
	namespace, name, kind string,
	status metav1.ConditionStatus,
	reason string,
) metav1.Condition {
	t.Helper()
	var got metav1.Condition
	must(t, testbed.Until(t.Context(), soon,
		fmt.Sprintf("%s %s=%s %s", name, kind, status, reason), func(ctx context.Context) (err error) {
			if got, err = e.ServiceCondition(ctx, namespace, name, kind); err != nil {
				return err
			}
			if got.Status != status || got.Reason != reason {
				return fmt.Errorf("it is %s %s: %s", got.Status, got.Reason, got.Message)
			}
			return nil
		}))
	return got
}

// describes waits until the output of kubectl describe contains all texts.
func (e *env) describes(t *testing.T, texts []string, object ...string) {
	t.Helper()
	must(t, testbed.Until(t.Context(), soon, "the output of kubectl describe", func(ctx context.Context) error {
		out, err := e.Kubectl(ctx, append([]string{"describe"}, object...)...)
		if err != nil {
			return err
		}
		// kubectl breaks no lines within a message.
		for _, w := range texts {
			if !strings.Contains(out, w) {
				return fmt.Errorf("it lacks %q:\n%s", w, out)
			}
		}
		return nil
	}))
}

// why waits until the plugin's explanation has this text, as the first thing to do or in the step about it, and
// something is to be done. args are the arguments of its command why.
func (e *env) why(t *testing.T, text string, args ...string) {
	t.Helper()
	must(t, testbed.Until(t.Context(), soon, "the explanation", func(ctx context.Context) error {
		out, err := e.Plugin(ctx, append([]string{"why"}, args...)...)
		_, first, found := strings.Cut(out, "First: ")
		if err == nil && (!found || strings.HasPrefix(first, "nothing: ") || !strings.Contains(out, text)) {
			err = fmt.Errorf("it lacks %q:\n%s", text, out)
		}
		return err
	}))
}

// announced waits until a Service's condition AnnouncedL2 is true.
func (e *env) announced(t *testing.T, namespace, name string) {
	t.Helper()
	e.waitCondition(t, namespace, name, v1beta1.ConditionAnnouncedL2, metav1.ConditionTrue, "Announced")
}

// silent waits until no machine answers ARP or NDP for the addresses.
func (e *env) silent(t *testing.T, addresses []netip.Addr) {
	t.Helper()
	for _, a := range addresses {
		must(t, testbed.Until(t.Context(), soon, "silence about "+a.String(), func(ctx context.Context) error {
			answered, err := e.Answered(ctx, testbed.Client, a)
			if err == nil && answered {
				err = fmt.Errorf("a machine answers for it")
			}
			return err
		}))
	}
}

// hops waits until both routers have n next hops for each address.
func (e *env) hops(t *testing.T, addresses []netip.Addr, n int) {
	t.Helper()
	for _, router := range bothRouters {
		for _, a := range addresses {
			must(t, e.WaitHops(t.Context(), 40*time.Second, router, a, n))
		}
	}
}

// served waits until a host gets answers from all addresses.
func (e *env) served(t *testing.T, host string, addresses []netip.Addr) {
	t.Helper()
	for _, a := range addresses {
		_, err := e.WaitFetch(t.Context(), host, probe.TCP, a)
		must(t, err)
	}
}

// but returns the nodes other than one.
func but(nodes []string, out string) []string {
	return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == out })
}

// logOutages logs how long a client got no answer; an outage that has not ended is an error.
func logOutages(t *testing.T, what string, results []probe.Result) (failed int) {
	t.Helper()
	outages := probe.Outages(results)
	for _, o := range outages {
		failed += o.Failed
	}
	longest, some := probe.Longest(outages)
	t.Logf("%s: %d of %d probes failed, longest time without an answer %d ms%s", what, failed, len(results),
		longest.Length().Milliseconds(), failures(results))
	if some && !outages[len(outages)-1].Over {
		t.Errorf("%s: the last outage has not ended", what)
	}
	return failed
}

// failures says when probes failed, and why.
func failures(results []probe.Result) string {
	causes := map[string]int{}
	var first, last time.Time
	for _, r := range results {
		if r.OK {
			continue
		}
		// Results are in the order in which probes ended.
		if first.IsZero() || r.Start.Before(first) {
			first = r.Start
		}
		if r.Start.After(last) {
			last = r.Start
		}
		causes[ports.ReplaceAllString(r.Error, "")]++
	}
	if len(causes) == 0 {
		return ""
	}
	return fmt.Sprintf(", from %s to %s: %v", first.Format(clock), last.Format(clock), causes)
}

// clock is the form of a time of day in logs.
const clock = "15:04:05.000"

// ports matches the ports of clients in the errors of package net. No group of an IPv6 address has five digits.
var ports = regexp.MustCompile(`:\d{5}\b`)

// alone checks at the end of the test that no speaker saw another machine claim an address of its own. A second speaker
// counts as another machine.
func (e *env) alone(t *testing.T) {
	t.Helper()
	before := e.conflicts(t.Context(), t)
	t.Cleanup(func() {
		for series, count := range e.conflicts(context.Background(), t) {
			// A speaker that started during the test counts from zero.
			former := before[series]
			if former > count {
				former = 0
			}
			if count > former {
				t.Errorf("%s grew from %.0f to %.0f, though nothing was broken", series, former, count)
			}
		}
		if t.Failed() {
			e.logWarnings(context.Background(), t)
		}
	})
}

// logWarnings logs the warnings of all speakers of the last two minutes.
func (e *env) logWarnings(ctx context.Context, t *testing.T) {
	t.Helper()
	pods, err := e.Pods(ctx, testbed.Speaker)
	if err != nil {
		t.Log(err)
		return
	}
	for _, p := range pods {
		text, err := e.Kubectl(ctx, "-n", testbed.Namespace, "logs", p.Name, "--since=2m")
		if err != nil {
			t.Log(err)
			continue
		}
		for line := range strings.Lines(text) {
			if strings.Contains(line, "WARN") {
				t.Logf("%s: %s", p.Spec.NodeName, strings.TrimSpace(line))
			}
		}
	}
}

// conflicts returns how often each speaker saw an address of its own claimed, by node and series.
func (e *env) conflicts(ctx context.Context, t *testing.T) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, node := range e.Cluster.Nodes() {
		all, err := e.Metrics(ctx, node)
		if err != nil {
			t.Errorf("metrics of %s: %v", node, err)
			continue
		}
		for series, value := range all {
			if strings.HasPrefix(series, "holdfast_l2_conflicts_total") {
				out[node+" "+series] = value
			}
		}
	}
	if len(out) == 0 {
		t.Error("no speaker counts conflicts")
	}
	return out
}
