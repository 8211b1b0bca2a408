package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/explain"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
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
	kube kubernetes.Interface
	// own serves the kinds of group holdfast.dev.
	own rest.Interface
	// namespace of Holdfast; only is the namespace to read Services from, "" for all.
	namespace, only string
	snapshot        explain.Snapshot
}

func newReader(c *rest.Config, namespace, only string) (*reader, error) {
	c = rest.CopyConfig(c)
	c.UserAgent, c.QPS = "kubectl-holdfast", -1 // the API server paces us
	kube, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	c.GroupVersion, c.APIPath, c.NegotiatedSerializer = &v1beta1.GroupVersion, "/apis", serializer.NewCodecFactory(scheme).WithoutConversion()
	own, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("make client of %s: %w", v1beta1.GroupVersion, err)
	}
	return &reader{kube: kube, own: own, namespace: namespace, only: only}, nil
}

var scheme = newScheme()

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1beta1.AddToScheme, corev1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}

// read reads all that an explanation may need. What the user may not read is noted, and no error; an API server that does not
// answer is one.
func (r *reader) read(ctx context.Context) (explain.Snapshot, error) {
	r.snapshot = explain.Snapshot{Now: time.Now(), Namespace: r.namespace, Unread: map[string]string{}}
	s, o := &r.snapshot, &r.snapshot.Objects
	core, apps, discovery := r.kube.CoreV1().RESTClient(), r.kube.AppsV1().RESTClient(), r.kube.DiscoveryV1().RESTClient()
	coordination := r.kube.CoordinationV1().RESTClient()
	speakers := metav1.ListOptions{LabelSelector: parts + ",app.kubernetes.io/component=speaker"}
	ours := metav1.ListOptions{LabelSelector: parts}
	var daemonSets []*appsv1.DaemonSet
	var deployments []*appsv1.Deployment
	for _, read := range []func() error{
		func() error { return list(ctx, r, core, explain.Services, r.only, metav1.ListOptions{}, &o.Services) },
		func() error {
			return list(ctx, r, discovery, explain.Slices, r.only, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name"}, &o.EndpointSlices)
		},
		func() error { return list(ctx, r, core, explain.Nodes, "", metav1.ListOptions{}, &o.Nodes) },
		func() error { return list(ctx, r, core, "namespaces", "", metav1.ListOptions{}, &o.Namespaces) },
		func() error { return list(ctx, r, r.own, explain.Pools, "", metav1.ListOptions{}, &o.Pools) },
		func() error { return list(ctx, r, r.own, "poolmemories", "", metav1.ListOptions{}, &o.PoolMemories) },
		func() error { return list(ctx, r, r.own, "floatingips", r.only, metav1.ListOptions{}, &o.FloatingIPs) },
		func() error { return list(ctx, r, r.own, explain.L2Ads, "", metav1.ListOptions{}, &o.L2Advertisements) },
		func() error {
			return list(ctx, r, r.own, explain.BGPAds, "", metav1.ListOptions{}, &o.BGPAdvertisements)
		},
		func() error { return list(ctx, r, r.own, explain.Peers, "", metav1.ListOptions{}, &o.Peers) },
		func() error { return list(ctx, r, r.own, "bfdprofiles", "", metav1.ListOptions{}, &o.BFDProfiles) },
		func() error { return list(ctx, r, r.own, "communities", "", metav1.ListOptions{}, &o.Communities) },
		func() error { return list(ctx, r, r.own, explain.States, "", metav1.ListOptions{}, &s.States) },
		func() error { return list(ctx, r, core, explain.Pods, r.namespace, speakers, &s.Pods) },
		func() error { return list(ctx, r, apps, explain.Speakers, r.namespace, ours, &daemonSets) },
		func() error { return list(ctx, r, apps, explain.Controller, r.namespace, ours, &deployments) },
		func() error {
			return list(ctx, r, coordination, explain.Leases, r.namespace, metav1.ListOptions{FieldSelector: "metadata.name=" + leaseName}, &s.Leases)
		},
	} {
		if err := read(); err != nil {
			return r.snapshot, err
		}
	}
	for _, d := range daemonSets {
		s.Speakers = d
	}
	for _, d := range deployments {
		s.Controller = d
	}
	s.Options = optionsOf(s.Controller)
	return r.snapshot, nil
}

// list lists a resource, page by page.
func list[T any](ctx context.Context, r *reader, client rest.Interface, resource, namespace string, options metav1.ListOptions, out *[]*T) error {
	options.Limit = pageSize
	for {
		var page struct {
			metav1.TypeMeta `json:",inline"`
			metav1.ListMeta `json:"metadata,omitempty"`
			Items           []*T `json:"items"`
		}
		raw, err := client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).VersionedParams(&options, metav1.ParameterCodec).
			SetHeader("Accept", "application/json").DoRaw(ctx)
		switch {
		case apierrors.IsForbidden(err):
			r.snapshot.Unread[resource] = "you have no right to list " + resource
			return nil
		case apierrors.IsNotFound(err):
			r.snapshot.Unread[resource] = "this API server has no " + resource + ": Holdfast is not installed, or is of another version"
			return nil
		case err != nil:
			return fmt.Errorf("list %s: %w", resource, err)
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			return fmt.Errorf("read %s: %w", resource, err)
		}
		*out = append(*out, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
	}
}

// optionsOf returns the settings of the controller that runs, from its arguments; without it, the chart's.
func optionsOf(d *appsv1.Deployment) config.Options {
	var o config.Options
	f := flag.NewFlagSet("controller", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	o.Define(f)
	if d == nil {
		return o
	}
	for _, arg := range d.Spec.Template.Spec.Containers[0].Args {
		name, value, given := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if f.Lookup(name) != nil && given {
			_ = f.Set(name, value) // the controller itself would not start with a value that cannot be read
		}
	}
	return o
}
