package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"reflect"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

const (
	// pageSize bounds one answer of the API server: it need not hold ten thousand Services at once for us.
	pageSize = "500"
	// parts select the objects of Holdfast itself, as the chart labels them.
	parts = "labelSelector=app.kubernetes.io/name=holdfast"
	// leaseName is the Lease by which the controllers elect their leader.
	leaseName = "holdfast-controller"
)

// reader reads a cluster with the rights of the user.
type reader struct {
	config   *rest.Config
	client   rest.Interface
	patience time.Duration // for one debug page
	snapshot explain.Snapshot
}

func (s *seat) reader() (*reader, error) {
	c, err := s.cluster.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	c = rest.CopyConfig(c)
	c.UserAgent, c.QPS = "kubectl-holdfast", -1 // the API server paces us
	client, err := discovery.NewDiscoveryClientForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return &reader{c, client.RESTClient(), debugTime, explain.Snapshot{Now: time.Now(), Namespace: s.namespace, Unread: map[string]string{}}}, nil
}

var scheme = newScheme()

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	both := runtime.NewSchemeBuilder(v1beta1.AddToScheme, corev1.AddToScheme)
	utilruntime.Must(both.AddToScheme(s))
	// MetalLB's kinds have the names and fields of ours.
	for kind, of := range s.KnownTypes(v1beta1.GroupVersion) {
		for _, version := range []string{"v1beta1", "v1beta2"} {
			s.AddKnownTypeWithName(schema.GroupVersionKind{Group: "metallb.io", Version: version, Kind: kind}, reflect.New(of).Interface().(runtime.Object))
		}
	}
	return s
}

// read reads all that an explanation may need; of Services only one namespace unless it is "". What the user may not read is
// noted, and no error; an API server that does not answer is one.
func (r *reader) read(ctx context.Context, only string) (explain.Snapshot, error) {
	const core, own, apps = "/api/v1", "/apis/holdfast.dev/v1beta1", "/apis/apps/v1"
	s, o := &r.snapshot, &r.snapshot.Objects
	var daemonSets []*appsv1.DaemonSet
	var deployments []*appsv1.Deployment
	for _, read := range []func(context.Context) error{
		list(r, core, explain.Services, only, "", &o.Services),
		list(r, "/apis/discovery.k8s.io/v1", explain.Slices, only, "labelSelector=kubernetes.io/service-name", &o.EndpointSlices),
		list(r, core, explain.Nodes, "", "", &o.Nodes),
		list(r, core, "namespaces", "", "", &o.Namespaces),
		list(r, own, explain.Pools, "", "", &o.Pools),
		list(r, own, "poolmemories", "", "", &o.PoolMemories),
		list(r, own, "floatingips", only, "", &o.FloatingIPs),
		list(r, own, explain.L2Ads, "", "", &o.L2Advertisements),
		list(r, own, explain.BGPAds, "", "", &o.BGPAdvertisements),
		list(r, own, explain.Peers, "", "", &o.Peers),
		list(r, own, "bfdprofiles", "", "", &o.BFDProfiles),
		list(r, own, "communities", "", "", &o.Communities),
		list(r, own, explain.States, "", "", &s.States),
		list(r, core, explain.Pods, s.Namespace, parts+",app.kubernetes.io/component=speaker", &s.Pods),
		list(r, apps, explain.Speakers, s.Namespace, parts, &daemonSets),
		list(r, apps, explain.Controller, s.Namespace, parts, &deployments),
		list(r, "/apis/coordination.k8s.io/v1", explain.Leases, s.Namespace, "fieldSelector=metadata.name="+leaseName, &s.Leases),
	} {
		if err := read(ctx); err != nil {
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

// list returns a function that lists a resource, page by page.
func list[T any](r *reader, group, resource, namespace, selector string, out *[]*T) func(context.Context) error {
	path := []string{group, resource}
	if namespace != "" {
		path = []string{group, "namespaces", namespace, resource}
	}
	return func(ctx context.Context) error {
		for next := ""; ; {
			var page struct {
				metav1.ListMeta `json:"metadata"`
				Items           []*T `json:"items"`
			}
			request := r.client.Get().AbsPath(path...).Param("limit", pageSize).Param("continue", next).SetHeader("Accept", "application/json")
			if name, value, selects := strings.Cut(selector, "="); selects {
				request.Param(name, value)
			}
			raw, err := request.DoRaw(ctx)
			switch {
			case apierrors.IsForbidden(err):
				r.snapshot.Unread[resource] = "you have no right to list " + resource
				return nil
			case apierrors.IsNotFound(err):
				r.snapshot.Unread[resource] = "this API server has no " + resource + " of this version: are the custom resource definitions installed?"
				return nil
			case err == nil:
				err = json.Unmarshal(raw, &page)
			}
			if err != nil {
				return fmt.Errorf("list %s: %w", resource, err)
			}
			*out = append(*out, page.Items...)
			if next = page.Continue; next == "" {
				return nil
			}
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
