package main

import (
	"fmt"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
)

// endpointsStep makes the step about the pods to which a packet can go in the end.
func (e *serviceExplanation) endpointsStep() Step {
	step := Step{
		Name:    "endpoints",
		Verdict: Problem,
		Reason:  lb.NoServingEndpoint,
	}

	all, nodes, lacks := e.serving()
	hasNodes := len(nodes) > 0
	selector := labels.FormatLabels(e.object.Spec.Selector)
	switch {
	case lacks != nil:
		if hasNodes {
			step.Reason = ""
		}

		step.Text = lacks[0].Text
		step.Do = lacks[0].Do
		for _, lack := range lacks[1:] {
			step.Details = append(step.Details, lack.Text)
		}
	case hasNodes:
		step.Verdict = OK
		step.Reason = ""
		step.Text = fmt.Sprintf("pods on %s can serve", lb.SomeOf(nodes))
		if e.object.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
			step.Text += "; externalTrafficPolicy is Local, so that no other node announces"
		}
	case all > 0:
		step.Text = fmt.Sprintf("none of %d can serve: no pod is ready", all)
		step.Do = fmt.Sprintf("make the pods ready: kubectl -n %s describe pods -l %s", e.key.Namespace, selector)
	case len(e.object.Spec.Selector) == 0:
		step.Text = "there are none, and the Service has no selector: something else must write its EndpointSlices"
		step.Do = "write an EndpointSlice"
	default:
		step.Text = "there are none: no pod has the labels of spec.selector"
		step.Do = "correct spec.selector, or start pods with the labels " + selector
	}

	return e.unlessUnread(step.withFewDetails(), "they", Slices)
}

// serving returns the number of the Service's endpoints, and the nodes with endpoints that serve one of its ports.
// lacks are the families and ports that no endpoint serves although a pod is ready.
func (e *serviceExplanation) serving() (all int, nodes []string, lacks []Step) {
	own := e.endpointSlices()
	hasReady := map[lb.Family]bool{}
	for _, slice := range own {
		all += len(slice.Endpoints)
		if slices.ContainsFunc(slice.Endpoints, isReady) {
			hasReady[lb.Family(slice.AddressType)] = true
		}
	}

	served := e.Options.Served(e.object, own)
	// Another program than kube-proxy may read slices in its own way, and a condition is about what kube-proxy ignores.
	readsOtherwise := e.Options.OtherDataPath || served.IgnoredByKubeProxy
	for _, family := range e.familiesToServe(hasReady) {
		nodes = append(nodes, served.ServingNodes(family)...)
		if served.ServingAnywhere(family) {
			nodes = append(nodes, "no node")
		}

		if !readsOtherwise {
			lacks = append(lacks, e.lacksOf(family, served, hasReady)...)
		}
	}

	slices.Sort(nodes)
	return all, slices.Compact(nodes), lacks
}

// endpointSlices returns the EndpointSlices of the Service.
func (e *serviceExplanation) endpointSlices() (own []*discoveryv1.EndpointSlice) {
	for _, slice := range e.Objects.EndpointSlices {
		if slice.Namespace == e.key.Namespace && slice.Labels[discoveryv1.LabelServiceName] == e.key.Name {
			own = append(own, slice)
		}
	}

	return own
}

// lacksOf returns a step about each port that no endpoint of a family serves although a pod is ready, or one step about
// the whole family.
func (e *serviceExplanation) lacksOf(family lb.Family, served lb.Service, hasReady map[lb.Family]bool) (lacks []Step) {
	if hasReady[family] {
		for i, p := range served.Ports {
			_, isServed := served.PortNodes(family, p)
			if !isServed {
				lacks = append(lacks, e.unservedPortStep(family, e.object.Spec.Ports[i]))
			}
		}

		return lacks
	}

	if len(hasReady) == 0 {
		return nil
	}
	return []Step{{
		Text: fmt.Sprintf("no pod has an %s address", family),
		Do:   fmt.Sprintf("take %[1]s out of spec.ipFamilies, or run pods with addresses of %[1]s", family),
	}}
}

// isReady reports whether an endpoint is ready, for whichever port.
func isReady(e discoveryv1.Endpoint) bool {
	return e.Conditions.Ready == nil || *e.Conditions.Ready
}

// familiesToServe returns the families in which pods must serve: for a proxied Service only the first with ready pods.
func (e *serviceExplanation) familiesToServe(hasReady map[lb.Family]bool) (out []lb.Family) {
	for _, family := range e.object.Spec.IPFamilies {
		out = append(out, lb.Family(family))
	}

	if !meta.IsStatusConditionTrue(e.object.Status.Conditions, v1beta1.ConditionProxied) {
		return out
	}

	first := slices.IndexFunc(out, func(f lb.Family) bool { return hasReady[f] })
	if first < 0 {
		return out
	}

	return out[first : first+1]
}

// unservedPortStep makes the step about why no endpoint serves a port in a family with ready pods.
func (e *serviceExplanation) unservedPortStep(family lb.Family, p corev1.ServicePort) Step {
	if len(e.object.Spec.Selector) == 0 {
		return Step{
			Text: fmt.Sprintf(
				"no EndpointSlice of %s has the name %q and a number for port %d",
				family,
				p.Name,
				p.Port,
			),
			Do: fmt.Sprintf("give the port the name %q in the EndpointSlices", p.Name),
		}
	}

	name := p.TargetPort.StrVal
	if name == "" {
		return Step{
			Text: fmt.Sprintf("port %d is in no EndpointSlice of %s", p.Port, family),
			Do:   "wait some seconds; if nothing changes look at the log of kube-controller-manager",
		}
	}

	return Step{
		Text: fmt.Sprintf(
			"no ready pod with an %s address has a container port named %q, the targetPort of port %d",
			family,
			name,
			p.Port,
		),
		Do: fmt.Sprintf(
			"correct targetPort of port %d, or name a container port %q: kubectl -n %s get pods -l %s -o "+
				"jsonpath='{.items[*].spec.containers[*].ports}'",
			p.Port,
			name,
			e.key.Namespace,
			labels.FormatLabels(e.object.Spec.Selector),
		),
	}
}
