package main

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

const (
	// pageSize bounds one answer of the API server: it need not hold ten thousand Services at once for us.
	pageSize = 500
	// parts select the objects of Holdfast itself, as the chart labels them.
	parts = "app.kubernetes.io/name=holdfast"
	// leaseName is the Lease by which the controllers elect their leader.
	leaseName = "holdfast-controller"
)

// reader reads a cluster with the rights of the user.
type reader struct {
	config   *rest.Config
	client   rest.Interface
	patience time.Duration // for one debug page
}

// read reads all that an explanation may need; of Services only one namespace unless it is "". What the user may not
// read is noted, and no error; an API server that does not answer is one.
func (r *reader) read(ctx context.Context, holdfast, only string) (s Snapshot, err error) {
	const core, own, apps = "/api/v1", "/apis/holdfast.dev/v1beta1", "/apis/apps/v1"
	var all metav1.ListOptions
	labelled := func(labels string) metav1.ListOptions { return metav1.ListOptions{LabelSelector: labels} }
	s.Now, s.Namespace, s.Unread = time.Now(), holdfast, map[string]string{}
	o := &s.Objects
	var daemonSets []*appsv1.DaemonSet
	var deployments []*appsv1.Deployment
	for _, read := range []func(context.Context) error{
		list(r, s.Unread, core, Services, only, all, &o.Services),
		list(r, s.Unread, "/apis/discovery.k8s.io/v1", Slices, only, labelled("kubernetes.io/service-name"),
			&o.EndpointSlices),
		list(r, s.Unread, core, Nodes, "", all, &o.Nodes),
		list(r, s.Unread, core, "namespaces", "", all, &o.Namespaces),
		list(r, s.Unread, own, Pools, "", all, &o.Pools),
		list(r, s.Unread, own, "poolmemories", "", all, &o.PoolMemories),
		list(r, s.Unread, own, Allocations, "", all, &o.EgressAllocations),
		list(r, s.Unread, own, "floatingips", only, all, &o.FloatingIPs),
		list(r, s.Unread, own, L2Ads, "", all, &o.L2Advertisements),
		list(r, s.Unread, own, BGPAds, "", all, &o.BGPAdvertisements),
		list(r, s.Unread, own, Peers, "", all, &o.Peers),
		list(r, s.Unread, own, "bfdprofiles", "", all, &o.BFDProfiles),
		list(r, s.Unread, own, "communities", "", all, &o.Communities),
		list(r, s.Unread, own, States, "", all, &s.States),
		list(r, s.Unread, core, Pods, holdfast, labelled(parts+",app.kubernetes.io/component=speaker"), &s.Pods),
		list(r, s.Unread, core, Pods, holdfast, labelled(parts+",app.kubernetes.io/component=controller"), &s.Controllers),
		list(r, s.Unread, apps, Speakers, holdfast, labelled(parts), &daemonSets),
		list(r, s.Unread, apps, Controller, holdfast, labelled(parts), &deployments),
		list(r, s.Unread, "/apis/coordination.k8s.io/v1", Leases, holdfast,
			metav1.ListOptions{FieldSelector: "metadata.name=" + leaseName}, &s.Leases),
	} {
		if err := read(ctx); err != nil {
			return s, err
		}
	}
	for _, d := range daemonSets {
		s.Speakers = d
	}
	for _, d := range deployments {
		s.Controller = d
	}
	s.ReadOptions()
	return s, nil
}

// list returns a function that lists a resource, page by page.
func list[T any](
	r *reader,
	unread map[string]string,
	group, resource, namespace string,
	of metav1.ListOptions,
	out *[]*T,
) func(context.Context) error {
	return func(ctx context.Context) error {
		for of.Limit = pageSize; ; {
			var page struct {
				metav1.ListMeta `json:"metadata"`
				Items           []*T `json:"items"`
			}
			raw, err := r.client.Get().AbsPath(group).NamespaceIfScoped(namespace, namespace != "").Resource(resource).
				VersionedParams(&of, metav1.ParameterCodec).SetHeader("Accept", "application/json").DoRaw(ctx)
			switch {
			case apierrors.IsForbidden(err):
				unread[resource] = "you have no right to list " + resource
				return nil
			case apierrors.IsNotFound(err):
				unread[resource] = "this API server has no " + resource +
					" of this version: are the custom resource definitions installed?"
				return nil
			case err == nil:
				err = json.Unmarshal(raw, &page)
			}
			if err != nil {
				return fmt.Errorf("list %s: %w", resource, err)
			}
			*out = append(*out, page.Items...)
			if of.Continue = page.Continue; of.Continue == "" {
				return nil
			}
		}
	}
}

// egressPods adds the pods of a namespace, as far as their outgoing connections depend on them; only one unless name is
// "".
func (r *reader) egressPods(ctx context.Context, s *Snapshot, namespace, name string) error {
	var of metav1.ListOptions
	if name != "" {
		of.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
	}
	unread := map[string]string{}
	var pods []*corev1.Pod
	if err := list(r, unread, "/api/v1", Pods, namespace, of, &pods)(ctx); err != nil {
		return err
	}

	if why := unread[Pods]; why != "" {
		s.Unread[EgressPods] = why
	}
	for _, p := range pods {
		s.Objects.EgressPods = append(s.Objects.EgressPods, withoutContainers(p))
	}
	return nil
}

// withoutContainers returns a pod with its labels, its node and its addresses alone: containers may have passwords.
func withoutContainers(p *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Labels: p.Labels},
		Spec:       corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork},
		Status:     corev1.PodStatus{Phase: p.Status.Phase, PodIPs: p.Status.PodIPs},
	}
}

// allEgressPods adds the pods of each namespace in which a Service asks for egress.
func (r *reader) allEgressPods(ctx context.Context, s *Snapshot) error {
	namespaces := map[string]bool{}
	for _, o := range s.Objects.Services {
		if config.AsksEgress(o) {
			namespaces[o.Namespace] = true
		}
	}
	for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
		if err := r.egressPods(ctx, s, namespace, ""); err != nil {
			return err
		}
	}
	return nil
}

// hide removes what a bug report must not have, and writes down what it lacks. Snapshots share objects with nothing.
func (s *Snapshot) hide() {
	s.LeftOut = []string{
		"Secrets are not read; passwords in BGPPeers and the values of the daemons' environment are replaced; labels, " +
			"annotations and fields of Services and Nodes are as they are; of pods in namespaces with " +
			config.AnnotationEgress + " only labels, nodes and addresses are there, and of others nothing",
	}
	if s.Controller != nil {
		hideEnvironment(&s.Controller.ObjectMeta, &s.Controller.Spec.Template)
	}
	if s.Speakers != nil {
		hideEnvironment(&s.Speakers.ObjectMeta, &s.Speakers.Spec.Template)
	}
	for _, pod := range slices.Concat(s.Pods, s.Controllers) {
		hideEnvironment(&pod.ObjectMeta, &corev1.PodTemplateSpec{Spec: pod.Spec})
	}
	for _, p := range s.Objects.Peers {
		if p.Spec.Password != "" {
			p.Spec.Password = "unread"
		}
		delete(p.Annotations, corev1.LastAppliedConfigAnnotation) // it repeats the password
	}
	for _, resource := range slices.Sorted(maps.Keys(s.Unread)) {
		s.LeftOut = append(s.LeftOut, resource+": "+s.Unread[resource])
	}
	for _, pod := range slices.Sorted(maps.Keys(s.Silent)) {
		s.LeftOut = append(s.LeftOut, "the page of pod "+pod+": "+s.Silent[pod])
	}
}

// hideEnvironment replaces the values of the environment of a daemon's containers: proxies and tokens are there. The
// annotation of kubectl apply repeats them.
func hideEnvironment(object *metav1.ObjectMeta, pod *corev1.PodTemplateSpec) {
	delete(object.Annotations, corev1.LastAppliedConfigAnnotation)
	delete(pod.Annotations, corev1.LastAppliedConfigAnnotation)
	hide := func(env []corev1.EnvVar) {
		for i := range env {
			if env[i].Value != "" {
				env[i].Value = "unread"
			}
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		hide(c.Env)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		hide(c.Env)
	}
}

func (s *seat) bundle() *cobra.Command {
	return &cobra.Command{
		Use:   "bundle FILE",
		Short: "Write what a bug report needs into a file, without passwords",
		Args:  cobra.ExactArgs(1),
		Long:  "The file is compressed JSON. With --from FILE all other commands read it in place of the cluster.",
		RunE: func(cmd *cobra.Command, args []string) error {
			snapshot, err := s.read(cmd.Context(), "")
			if err != nil {
				return err
			}
			if s.from == "" {
				if err := s.allEgressPods(cmd.Context(), &snapshot); err != nil {
					return err
				}
				s.pages(cmd.Context(), append(snapshot.Controllers, snapshot.Pods...), &snapshot)
			}
			snapshot.hide()
			if err := snapshot.write(args[0]); err != nil {
				return err
			}
			for _, text := range snapshot.LeftOut {
				fmt.Fprintln(cmd.OutOrStdout(), "left out:", lb.Line(text, maxText))
			}
			return nil
		},
	}
}

func (s *Snapshot) write(name string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	w := gzip.NewWriter(f)
	return errors.Join(json.NewEncoder(w).Encode(s), w.Close(), f.Close())
}

// maxBundle bounds what a bundle expands to, in bytes.
const maxBundle = 2 << 30

// readBundle reads a bundle, which a stranger may have written.
func readBundle(name string) (s Snapshot, err error) {
	f, err := os.Open(name)
	if err != nil {
		return s, err
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err == nil {
		err = json.NewDecoder(io.LimitReader(r, maxBundle)).Decode(&s)
	}
	if err != nil {
		return s, fmt.Errorf("read the bundle %s: %w", name, err)
	}
	dropNil(reflect.ValueOf(&s).Elem())
	dropNil(reflect.ValueOf(&s.Objects).Elem())
	s.ReadOptions()
	return s, nil
}

// dropNil removes the nil objects of the lists of a struct: no API server has them.
func dropNil(of reflect.Value) {
	for _, list := range of.Fields() {
		if list.Kind() != reflect.Slice || list.Type().Elem().Kind() != reflect.Pointer {
			continue
		}
		kept := reflect.MakeSlice(list.Type(), 0, list.Len())
		for i := range list.Len() {
			if one := list.Index(i); !one.IsNil() {
				kept = reflect.Append(kept, one)
			}
		}
		list.Set(kept)
	}
}

const (
	// debugTime bounds the wait for one page, and maxDebug its size in bytes. maxAtOnce pages are read at a time.
	debugTime = 5 * time.Second
	maxDebug  = 64 << 20
	maxAtOnce = 16
)

// ask adds what speakers say of a Service and, if the user wants that, what they find on the wire.
func (r *reader) ask(ctx context.Context, w *why, probe bool) {
	if r.pages(ctx, w.asked(), w.Snapshot); !probe {
		return
	}
	step := Step{Name: "wire", Verdict: Unseen, Text: "no speaker that does not announce it can be asked"}
	for _, pod := range w.others() {
		answer, err := r.page(ctx, pod, http.MethodPost, "/debug/probe?service="+w.key.String())
		if err == nil && json.Unmarshal(answer, &step) == nil {
			break
		}
		step.Text = fmt.Sprintf("pod %s: %v", pod.Name, err)
	}
	w.Probed = []Step{step}
}

// pages adds the state of each of these daemons, or why it was not read.
func (r *reader) pages(ctx context.Context, pods []*corev1.Pod, s *Snapshot) {
	s.Daemons, s.Silent = map[string]json.RawMessage{}, map[string]string{}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(maxAtOnce)
	for _, p := range pods {
		group.Go(func() error {
			page, err := r.page(ctx, p, http.MethodGet, "/debug/state")
			mu.Lock()
			defer mu.Unlock()
			if s.Daemons[p.Name] = page; err != nil {
				delete(s.Daemons, p.Name)
				s.Silent[p.Name] = err.Error()
			}
			return nil
		})
	}
	_ = group.Wait()
}

// page asks a daemon for a debug page. It waits for no dead node, as the API server does.
func (r *reader) page(ctx context.Context, pod *corev1.Pod, method, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.patience, fmt.Errorf("no answer within %v", r.patience))
	defer cancel()
	done := make(chan func() ([]byte, error), 1)
	go func() {
		page, err := r.forward(ctx, pod, method, path)
		done <- func() ([]byte, error) { return page, err }
	}()
	select {
	case answer := <-done:
		return answer()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// debugPort is where a daemon serves its debug pages, on its loopback address only.
func debugPort(pod *corev1.Pod) string {
	if _, port, err := net.SplitHostPort(arguments(pod.Spec)["debug-listen"]); err == nil {
		return port
	}
	return "9219"
}

// forward reads a page by a port-forward: so no daemon, and not the user's machine either, has a port open for it.
func (r *reader) forward(ctx context.Context, pod *corev1.Pod, method, path string) ([]byte, error) {
	transport, upgrader, err := spdy.RoundTripperFor(r.config)
	if err != nil {
		return nil, err
	}
	address := r.client.Post().AbsPath("/api/v1/namespaces", pod.Namespace, "pods", pod.Name, "portforward").URL()
	forward, _, err := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, address).
		Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, err
	}
	defer forward.Close()
	defer context.AfterFunc(ctx, func() { forward.Close() })()
	var streams [2]io.ReadWriter // of faults, and of data
	for i, kind := range []string{corev1.StreamTypeError, corev1.StreamTypeData} {
		headers := http.Header{}
		headers.Set(corev1.StreamType, kind)
		headers.Set(corev1.PortHeader, debugPort(pod))
		headers.Set(corev1.PortForwardRequestIDHeader, "0")
		if streams[i], err = forward.CreateStream(headers); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, nil)
	if err == nil {
		err = request.Write(streams[1])
	}
	if err != nil {
		return nil, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(streams[1]), request)
	if err != nil {
		why, _ := io.ReadAll(streams[0]) // the node says there why it cannot connect
		return nil, fmt.Errorf("%w %s", cmp.Or(ctx.Err(), err), why)
	}
	page, err := io.ReadAll(io.LimitReader(answer.Body, maxDebug))
	page = bytes.TrimSpace(page)
	if err == nil && (answer.StatusCode != http.StatusOK || !json.Valid(page)) {
		err = fmt.Errorf("it answers %s: %s", answer.Status, bytes.ToValidUTF8(page[:min(len(page), 200)], nil))
	}
	return page, err
}
