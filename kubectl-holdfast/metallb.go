package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/template"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
)

// migrationLabel is the label of a node for the load balancer that has its BGP sessions during a move.
const migrationLabel = "holdfast.dev/migration"

// MetalLBParts are the objects by which MetalLB runs in a cluster.
type MetalLBParts struct {
	// Controllers and Speakers are one each, or none, unless MetalLB is installed twice.
	Controllers []*appsv1.Deployment
	Speakers    []*appsv1.DaemonSet
	// FRR are the DaemonSets of FRR-K8s, which has BGP sessions for the speakers and for others.
	FRR               []*appsv1.DaemonSet
	FRRConfigurations []*FRRConfiguration
	// SpeakerPods are the pods of the speakers.
	SpeakerPods []*corev1.Pod
	// Unread maps resources that could not be read to the reason.
	Unread map[string]string
}

// component returns the component of a workload in MetalLB's manifests and chart.
func component(pod corev1.PodTemplateSpec) string {
	return cmp.Or(pod.Labels["app.kubernetes.io/component"], pod.Labels["component"])
}

// variable returns a variable of the pod's first container that has it.
func variable(pod corev1.PodTemplateSpec, isName func(string) bool) (value string, found bool) {
	for _, c := range pod.Spec.Containers {
		for _, e := range c.Env {
			if isName(e.Name) {
				return e.Value, true
			}
		}
	}

	return "", false
}

// argument returns the value of a flag of any container; "" without it.
func argument(pod corev1.PodTemplateSpec, flag string) string {
	for _, c := range pod.Spec.Containers {
		for _, a := range c.Args {
			value, ok := strings.CutPrefix(a, "--"+flag+"=")
			if ok {
				return value
			}
		}
	}

	return ""
}

// named returns the predicate of one name.
func named(name string) func(string) bool {
	return func(s string) bool { return s == name }
}

// isSpeaker reports whether a DaemonSet is MetalLB's speaker. Names and labels are the user's choice; its variable is
// not.
func isSpeaker(d *appsv1.DaemonSet) bool {
	_, found := variable(d.Spec.Template, named("METALLB_NODE_NAME"))
	return found
}

// isController reports whether a Deployment is MetalLB's controller.
func isController(d *appsv1.Deployment) bool {
	if component(d.Spec.Template) != "controller" {
		return false
	}

	isOwn := func(name string) bool { return strings.HasPrefix(name, "METALLB_") }
	_, hasVariable := variable(d.Spec.Template, isOwn)
	isInChart := strings.HasPrefix(d.Labels["helm.sh/chart"], "metallb-")
	isInManifest := d.Labels["app"] == "metallb"
	return hasVariable || isInChart || isInManifest
}

// isFRR reports whether a DaemonSet is FRR-K8s.
func isFRR(d *appsv1.DaemonSet) bool {
	return component(d.Spec.Template) == "frr-k8s"
}

// addWorkloads adds MetalLB's workloads, of one namespace unless that is "". FRR-K8s may run in another one.
func (p *MetalLBParts) addWorkloads(
	deployments []*appsv1.Deployment,
	daemonSets []*appsv1.DaemonSet,
	namespace string,
) {
	isMeant := func(of string) bool { return namespace == "" || namespace == of }
	for _, d := range deployments {
		if isController(d) && isMeant(d.Namespace) {
			p.Controllers = append(p.Controllers, d)
		}
	}

	for _, d := range daemonSets {
		switch {
		case isSpeaker(d) && isMeant(d.Namespace):
			p.Speakers = append(p.Speakers, d)
		case isFRR(d):
			p.FRR = append(p.FRR, d)
		}
	}
}

// metalLBMove holds the facts on which the commands of a move depend.
type metalLBMove struct {
	// About describes the installation of MetalLB; "" if it cannot be moved.
	About, Namespace string
	// Chart is Holdfast's chart, Holdfast its namespace, and Label the migrationLabel.
	Chart, Holdfast, Label string
	// Controller and Speaker are names; "" for none.
	Controller, ControllerPods string
	Replicas                   int32
	Speaker, SpeakerPods       string
	// Mode is the speakers' implementation of BGP: native, frr or frr-k8s.
	Mode string
	// FRRNamespace is the namespace of the speakers' FRRConfigurations; "" in other modes if there are none.
	FRRNamespace string
	// VTYSH runs a command in the FRR of $node; "" if there is none.
	VTYSH string
	// Class is the only class of Services that MetalLB serves; "" if it serves those without one.
	Class string
	// Layer2, Peers and Advertisements report whether there are objects of these kinds.
	Layer2, Peers, Advertisements bool
	// Nodes are the nodes whose sessions move, one after the other.
	Nodes []string
}

// move returns the facts on which the commands depend.
func (p MetalLBParts) move(nodes []*corev1.Node, objects []runtime.Object) (v metalLBMove, err error) {
	v = metalLBMove{
		Label:    migrationLabel,
		Mode:     "native",
		Replicas: 1,
	}

	if len(p.Controllers) > 1 || len(p.Speakers) > 1 {
		all := lb.SomeOf(p.workloads())
		return v, fmt.Errorf("MetalLB is installed more than once, as %s: choose one by --metallb-namespace", all)
	}

	meta := p.addNames(&v)
	err = v.check()
	if err != nil {
		return v, err
	}

	peered := p.peeredNodes(&v)
	v.addObjects(objects)
	v.addNodes(objects, nodes, peered)
	v.VTYSH = p.vtysh(v)
	v.About = v.describe(meta)
	return v, nil
}

// workloads returns the names of MetalLB's workloads.
func (p MetalLBParts) workloads() (names []string) {
	for _, d := range p.Controllers {
		names = append(names, "Deployment "+d.Namespace+"/"+d.Name)
	}

	for _, d := range p.Speakers {
		names = append(names, "DaemonSet "+d.Namespace+"/"+d.Name)
	}
	return names
}

// addNames adds the names and settings of the workloads. It returns the metadata of one of them.
func (p MetalLBParts) addNames(v *metalLBMove) (meta metav1.ObjectMeta) {
	for _, d := range p.Controllers {
		meta = d.ObjectMeta
		v.Controller = d.Name
		v.ControllerPods = metav1.FormatLabelSelector(d.Spec.Selector)
		v.Class = argument(d.Spec.Template, "lb-class")
		if d.Spec.Replicas != nil {
			v.Replicas = max(*d.Spec.Replicas, 1)
		}
	}

	for _, d := range p.Speakers {
		meta = d.ObjectMeta
		v.Speaker = d.Name
		v.SpeakerPods = metav1.FormatLabelSelector(d.Spec.Selector)
		v.Class = cmp.Or(v.Class, argument(d.Spec.Template, "lb-class"))
		mode, _ := variable(d.Spec.Template, named("METALLB_BGP_TYPE"))
		v.Mode = cmp.Or(mode, "native")
		if v.Mode == "frr-k8s" {
			flag := argument(d.Spec.Template, "frrk8s-namespace")
			variable, _ := variable(d.Spec.Template, named("FRRK8S_NAMESPACE"))
			v.FRRNamespace = cmp.Or(flag, variable, d.Namespace)
		}
	}

	v.Namespace = meta.Namespace
	return meta
}

// check returns an error about invalid settings: all of them become words of a shell.
func (v metalLBMove) check() error {
	isKnownMode := slices.Contains([]string{"native", "frr", "frr-k8s"}, v.Mode)
	switch {
	case !isKnownMode:
		return fmt.Errorf("MetalLB's speaker runs BGP in the unknown mode %q", v.Mode)
	case v.Class != "" && len(validation.IsQualifiedName(v.Class)) > 0:
		return fmt.Errorf("MetalLB's flag --lb-class is the invalid class %q", v.Class)
	case v.FRRNamespace != "" && len(validation.IsDNS1123Label(v.FRRNamespace)) > 0:
		return fmt.Errorf("MetalLB's speaker writes FRRConfigurations into the invalid namespace %q", v.FRRNamespace)
	}

	return nil
}

// peeredNodes returns the nodes on which MetalLB may have BGP sessions. It adds the namespace of FRRConfigurations.
func (p MetalLBParts) peeredNodes(v *metalLBMove) map[string]bool {
	peered := map[string]bool{}
	for _, c := range p.FRRConfigurations {
		node := c.node()
		if node != "" {
			peered[node] = true
			v.FRRNamespace = cmp.Or(v.FRRNamespace, c.Namespace)
		}
	}

	for _, pod := range p.SpeakerPods {
		if pod.Namespace == v.Namespace && v.Speaker != "" {
			peered[pod.Spec.NodeName] = true
		}
	}

	return peered
}

// addObjects adds which kinds of objects there are.
func (v *metalLBMove) addObjects(objects []runtime.Object) {
	for _, o := range objects {
		switch o.(type) {
		case *v1beta1.L2Advertisement:
			v.Layer2 = true
		case *v1beta1.BGPAdvertisement:
			v.Advertisements = true
		case *v1beta1.BGPPeer:
			v.Peers = true
		}
	}
}

// addNodes adds the nodes whose sessions move: peers select them, and MetalLB may have sessions there.
func (v *metalLBMove) addNodes(objects []runtime.Object, nodes []*corev1.Node, peered map[string]bool) {
	for _, n := range nodes {
		isSelected := slices.ContainsFunc(objects, func(o runtime.Object) bool {
			peer, ok := o.(*v1beta1.BGPPeer)
			return ok && selects(peer.Spec.NodeSelectors, n.Labels)
		})

		if isSelected && peered[n.Name] {
			v.Nodes = append(v.Nodes, n.Name)
		}
	}

	slices.Sort(v.Nodes)
	v.Nodes = slices.Compact(v.Nodes)
}

// vtysh returns the command that runs a command in the FRR of $node; "" if MetalLB does not use FRR.
func (p MetalLBParts) vtysh(v metalLBMove) string {
	if v.Mode == "frr" {
		return vtyshIn(v.Namespace, v.SpeakerPods)
	}

	if v.Mode != "frr-k8s" {
		return ""
	}

	command := ""
	for _, d := range p.FRR {
		if d.Namespace == v.FRRNamespace {
			command = vtyshIn(d.Namespace, metav1.FormatLabelSelector(d.Spec.Selector))
		}
	}

	return command
}

// vtyshIn returns the command that runs a command in the FRR of these pods on $node.
func vtyshIn(namespace, pods string) string {
	return fmt.Sprintf(
		"kubectl -n %[1]s exec $(kubectl -n %[1]s get pod --selector='%[2]s' --field-selector=spec.nodeName=$node -o "+
			"name) -c frr -- vtysh -c",
		namespace,
		pods,
	)
}

// selects reports whether any of the selectors selects these labels. No selectors select all, and an invalid one
// selects nothing.
func selects(selectors []metav1.LabelSelector, set map[string]string) bool {
	if len(selectors) == 0 {
		return true
	}

	return slices.ContainsFunc(selectors, func(selector metav1.LabelSelector) bool {
		s, err := metav1.LabelSelectorAsSelector(&selector)
		return err == nil && s.Matches(labels.Set(set))
	})
}

// describe returns a description of the installation.
func (v metalLBMove) describe(meta metav1.ObjectMeta) string {
	if v.Controller == "" && v.Speaker == "" {
		return "no controller and no speaker of MetalLB is installed"
	}

	text := "MetalLB's manifest"
	chart := meta.Labels["helm.sh/chart"]
	if chart != "" {
		release := meta.Labels["app.kubernetes.io/instance"]
		text = fmt.Sprintf("MetalLB's chart %s, release %s,", chart, release)
	}

	text += " in namespace " + v.Namespace
	if v.Controller != "" {
		text += ", Deployment " + v.Controller
	}

	if v.Speaker != "" {
		text += ", DaemonSet " + v.Speaker + " in mode " + v.Mode
	}

	if v.FRRNamespace != "" {
		text += ", FRRConfigurations in namespace " + v.FRRNamespace
	}

	return text
}

// managerKeys are the labels and annotations of programs that overwrite changes of their objects.
var managerKeys = []struct{ key, program string }{
	{"argocd.argoproj.io/tracking-id", "Argo CD"},
	{"argocd.argoproj.io/instance", "Argo CD"},
	{"kustomize.toolkit.fluxcd.io/name", "Flux"},
	{"helm.toolkit.fluxcd.io/name", "Flux"},
}

// managerOf returns the program that would undo the commands of a move; "" if there is none.
func managerOf(meta metav1.ObjectMeta) string {
	for _, owner := range meta.OwnerReferences {
		return owner.Kind + " " + owner.Name
	}

	for _, k := range managerKeys {
		if meta.Labels[k.key]+meta.Annotations[k.key] != "" {
			return k.program
		}
	}

	return ""
}

// addInstallation reports which installation of MetalLB moves, and which parts of it have no counterpart.
func (m *Move) addInstallation(p MetalLBParts) {
	v, err := p.move(m.Snapshot.Objects.Nodes, m.Objects)
	if err != nil {
		m.note(Problem, "installation", "run it again with that flag", "%v", err)
		return
	}

	m.MetalLB = v
	m.Report.add(Step{
		Name:    "installation",
		Verdict: OK,
		Text:    v.About,
	})

	for resource, why := range p.Unread {
		isUnneeded := resource == frrConfigurations && v.Mode != "frr-k8s"
		if !isUnneeded {
			m.note(Note, "installation", "", "the list of %s is not complete: %s", resource, why)
		}
	}

	for _, d := range p.Controllers {
		m.addManager(d.ObjectMeta)
	}

	for _, d := range p.Speakers {
		m.addManager(d.ObjectMeta)
	}

	peers := m.peersByRouter()
	for _, c := range p.FRRConfigurations {
		if c.node() == "" {
			m.Report.add(c.step(peers))
		}
	}
}

// addManager reports the program that would undo the commands of the move on a workload.
func (m *Move) addManager(workload metav1.ObjectMeta) {
	manager := managerOf(workload)
	if manager == "" {
		return
	}

	m.note(
		Problem,
		workload.Name,
		"suspend "+manager+" until the move has ended",
		"%s writes it, and would undo the commands of the move",
		manager,
	)
}

// peersByRouter returns the names of the peers, by the address or the link of the router.
func (m *Move) peersByRouter() map[string]string {
	peers := map[string]string{}
	for _, o := range m.Objects {
		peer, ok := o.(*v1beta1.BGPPeer)
		if ok {
			router := cmp.Or(peer.Spec.PeerAddress, peer.Spec.Interface)
			peers[router] = peer.Name
		}
	}

	return peers
}

// deferSessions lets peers have sessions only on nodes with the label of the move, among the nodes that they select.
func deferSessions(objects []runtime.Object) {
	for _, o := range objects {
		peer, ok := o.(*v1beta1.BGPPeer)
		if !ok {
			continue
		}

		if len(peer.Spec.NodeSelectors) == 0 {
			peer.Spec.NodeSelectors = make(v1beta1.LabelSelectors, 1)
		}

		for i := range peer.Spec.NodeSelectors {
			metav1.AddLabelToSelector(&peer.Spec.NodeSelectors[i], migrationLabel, "holdfast")
		}
	}
}

//go:embed metallb.sh.tmpl
var metalLBCommands string

// print prints the commands that move to Holdfast, and back.
func (v metalLBMove) print(w io.Writer) error {
	t := template.New("commands").Delims("<%", "%>").Funcs(template.FuncMap{"join": strings.Join})
	return template.Must(t.Parse(metalLBCommands)).Execute(w, v)
}
