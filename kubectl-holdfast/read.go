package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
)

const (
	// pageSize bounds one answer of the API server, which may have ten thousand Services.
	pageSize = 500
	// ownLabels select the objects of Holdfast itself, as the chart labels them.
	ownLabels = "app.kubernetes.io/name=holdfast"
	// leaseName is the Lease by which the controllers elect their leader.
	leaseName = "holdfast-controller"
)

// reader reads a cluster with the rights of the user.
type reader struct {
	config *rest.Config
	client rest.Interface
	// timeout bounds the wait for one debug page.
	timeout time.Duration
}

// Groups of the API.
const (
	coreAPI     = "/api/v1"
	appsAPI     = "/apis/apps/v1"
	holdfastAPI = "/apis/holdfast.dev/v1beta1"
)

// withLabels returns the options that list objects with these labels.
func withLabels(labels string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: labels}
}

// read reads all that an explanation may need, with the Services of only one namespace unless that is "". What the user
// may not read is in Unread of the result. It returns an error if the API server does not answer.
func (r *reader) read(ctx context.Context, holdfast, only string) (s Snapshot, err error) {
	s.Now = time.Now()
	s.Namespace = holdfast
	s.Unread = map[string]string{}

	err = r.readObjects(ctx, &s, only)
	if err != nil {
		return s, err
	}

	err = r.readDaemons(ctx, &s)
	if err != nil {
		return s, err
	}

	s.ReadOptions()
	return s, nil
}

// readObjects reads the objects that the daemons read.
func (r *reader) readObjects(ctx context.Context, s *Snapshot, only string) error {
	const discoveryAPI = "/apis/discovery.k8s.io/v1"
	var all metav1.ListOptions
	ofServices := withLabels("kubernetes.io/service-name")
	o := &s.Objects
	return inOrder(ctx, []readFunc{
		list(r, s.Unread, coreAPI, Services, only, all, &o.Services),
		list(r, s.Unread, discoveryAPI, Slices, only, ofServices, &o.EndpointSlices),
		list(r, s.Unread, coreAPI, Nodes, "", all, &o.Nodes),
		list(r, s.Unread, coreAPI, "namespaces", "", all, &o.Namespaces),
		list(r, s.Unread, holdfastAPI, Pools, "", all, &o.Pools),
		list(r, s.Unread, holdfastAPI, "poolmemories", "", all, &o.PoolMemories),
		list(r, s.Unread, holdfastAPI, Allocations, "", all, &o.EgressAllocations),
		list(r, s.Unread, holdfastAPI, "floatingips", only, all, &o.FloatingIPs),
		list(r, s.Unread, holdfastAPI, L2Ads, "", all, &o.L2Advertisements),
		list(r, s.Unread, holdfastAPI, BGPAds, "", all, &o.BGPAdvertisements),
		list(r, s.Unread, holdfastAPI, Peers, "", all, &o.Peers),
		list(r, s.Unread, holdfastAPI, "bfdprofiles", "", all, &o.BFDProfiles),
		list(r, s.Unread, holdfastAPI, "communities", "", all, &o.Communities),
		list(r, s.Unread, holdfastAPI, States, "", all, &s.States),
	})
}

// readDaemons reads the workloads of Holdfast and the Lease of its controllers.
func (r *reader) readDaemons(ctx context.Context, s *Snapshot) error {
	const coordinationAPI = "/apis/coordination.k8s.io/v1"
	own := withLabels(ownLabels)
	ofSpeaker := withLabels(daemonLabels("speaker"))
	ofController := withLabels(daemonLabels("controller"))
	ofLeader := metav1.ListOptions{FieldSelector: "metadata.name=" + leaseName}
	var daemonSets []*appsv1.DaemonSet
	var deployments []*appsv1.Deployment
	err := inOrder(ctx, []readFunc{
		list(r, s.Unread, coreAPI, Pods, s.Namespace, ofSpeaker, &s.Pods),
		list(r, s.Unread, coreAPI, Pods, s.Namespace, ofController, &s.Controllers),
		list(r, s.Unread, appsAPI, Speakers, s.Namespace, own, &daemonSets),
		list(r, s.Unread, appsAPI, Controller, s.Namespace, own, &deployments),
		list(r, s.Unread, coordinationAPI, Leases, s.Namespace, ofLeader, &s.Leases),
	})

	for _, d := range daemonSets {
		s.Speakers = d
	}

	for _, d := range deployments {
		s.Controller = d
	}

	return err
}

// readFunc reads the objects of one resource.
type readFunc func(context.Context) error

// inOrder calls the functions until one fails.
func inOrder(ctx context.Context, reads []readFunc) error {
	for _, read := range reads {
		err := read(ctx)
		if err != nil {
			return err
		}
	}

	return nil
}

// list returns a function that appends the objects of a resource to out, page by page. It adds a resource that the user
// may not read, or that the API server lacks, to unread.
func list[T any](
	r *reader,
	unread map[string]string,
	group, resource, namespace string,
	options metav1.ListOptions,
	out *[]*T,
) readFunc {
	return func(ctx context.Context) error {
		options.Limit = pageSize
		for {
			raw, err := r.client.Get().
				AbsPath(group).
				NamespaceIfScoped(namespace, namespace != "").
				Resource(resource).
				VersionedParams(&options, metav1.ParameterCodec).
				SetHeader("Accept", "application/json").
				DoRaw(ctx)

			switch {
			case apierrors.IsForbidden(err):
				unread[resource] = "you have no right to list " + resource
				return nil
			case apierrors.IsNotFound(err):
				unread[resource] = "this API server has no " + resource +
					" of this version: are the custom resource definitions installed?"
				return nil
			}

			var page struct {
				metav1.ListMeta `json:"metadata"`
				Items           []*T `json:"items"`
			}

			if err == nil {
				err = json.Unmarshal(raw, &page)
			}

			if err != nil {
				return fmt.Errorf("list %s: %w", resource, err)
			}

			*out = append(*out, page.Items...)
			options.Continue = page.Continue
			if options.Continue == "" {
				return nil
			}
		}
	}
}

// readEgressPods adds the pods of a namespace, or one pod unless its name is "", as far as their outgoing connections
// depend on them.
func (r *reader) readEgressPods(ctx context.Context, s *Snapshot, namespace, name string) error {
	var options metav1.ListOptions
	if name != "" {
		options.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
	}

	unread := map[string]string{}
	var pods []*corev1.Pod
	read := list(r, unread, coreAPI, Pods, namespace, options, &pods)
	err := read(ctx)
	if err != nil {
		return err
	}

	why, isUnread := unread[Pods]
	if isUnread {
		s.Unread[EgressPods] = why
	}

	for _, p := range pods {
		s.Objects.EgressPods = append(s.Objects.EgressPods, withoutContainers(p))
	}

	return nil
}

// withoutContainers returns a pod with only its labels, its node and its addresses: containers may have passwords.
func withoutContainers(p *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace,
			Name:      p.Name,
			UID:       p.UID,
			Labels:    p.Labels,
		},
		Spec: corev1.PodSpec{
			NodeName:    p.Spec.NodeName,
			HostNetwork: p.Spec.HostNetwork,
		},
		Status: corev1.PodStatus{
			Phase:  p.Status.Phase,
			PodIPs: p.Status.PodIPs,
		},
	}
}

// readAllEgressPods adds the pods of each namespace in which a Service asks for egress.
func (r *reader) readAllEgressPods(ctx context.Context, s *Snapshot) error {
	namespaces := map[string]bool{}
	for _, o := range s.Objects.Services {
		if config.AsksEgress(o) {
			namespaces[o.Namespace] = true
		}
	}

	for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
		err := r.readEgressPods(ctx, s, namespace, "")
		if err != nil {
			return err
		}
	}

	return nil
}
