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

// migrationLabel tells which load balancer has the BGP sessions of a node during a move.
const migrationLabel = "holdfast.dev/migration"

// frrConfigurations are FRR-K8s' resource.
const frrConfigurations = "frrconfigurations"

// MetalLBParts is how MetalLB runs in a cluster.
type MetalLBParts struct {
	// Controllers and Speakers are one each, or none, unless MetalLB is installed twice.
	Controllers []*appsv1.Deployment
	Speakers    []*appsv1.DaemonSet
	// FRR are the DaemonSets of FRR-K8s, which holds BGP sessions for the speakers and for others.
	FRR               []*appsv1.DaemonSet
	FRRConfigurations []*FRRConfiguration
	// SpeakerPods are the pods of the speakers.
	SpeakerPods []*corev1.Pod
	// Unread is what could not be read, and why.
	Unread map[string]string
}

// FRRConfiguration is the part of FRR-K8s' kind that tells whose it is.
type FRRConfiguration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		NodeSelector metav1.LabelSelector `json:"nodeSelector"`
		BGP          struct {
			Routers []struct {
				Neighbors []struct {
					Address   string `json:"address"`
					Interface string `json:"interface"`
				} `json:"neighbors"`
			} `json:"routers"`
		} `json:"bgp"`
	} `json:"spec"`
}

// node returns the node whose speaker wrote the FRRConfiguration; "" if a user did.
func (c *FRRConfiguration) node() string {
	node, isOfOneNode := c.Spec.NodeSelector.MatchLabels[corev1.LabelHostname]
	if isOfOneNode && len(c.Spec.NodeSelector.MatchLabels) == 1 && c.Name == "metallb-"+node {
		return node
	}
	return ""
}

// component returns what a workload is in MetalLB's manifests and chart.
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
			if value, found := strings.CutPrefix(a, "--"+flag+"="); found {
				return value
			}
		}
	}
	return ""
}

func named(name string) func(string) bool { return func(s string) bool { return s == name } }

// isSpeaker reports whether a DaemonSet is MetalLB's speaker. Names and labels are the user's choice; its variable is
// not.
func isSpeaker(d *appsv1.DaemonSet) bool {
	_, found := variable(d.Spec.Template, named("METALLB_NODE_NAME"))
	return found
}

// isController reports whether a Deployment is MetalLB's controller.
func isController(d *appsv1.Deployment) bool {
	_, found := variable(d.Spec.Template, func(name string) bool { return strings.HasPrefix(name, "METALLB_") })
	isChart := strings.HasPrefix(d.Labels["helm.sh/chart"], "metallb-")
	return component(d.Spec.Template) == "controller" && (found || isChart || d.Labels["app"] == "metallb")
}

// isFRR reports whether a DaemonSet is FRR-K8s.
func isFRR(d *appsv1.DaemonSet) bool { return component(d.Spec.Template) == "frr-k8s" }

// sort keeps MetalLB's workloads, of one namespace unless that is "". FRR-K8s may run in another one.
func (p *MetalLBParts) sort(deployments []*appsv1.Deployment, daemonSets []*appsv1.DaemonSet, namespace string) {
	isThere := func(of string) bool { return namespace == "" || namespace == of }
	for _, d := range deployments {
		if isController(d) && isThere(d.Namespace) {
			p.Controllers = append(p.Controllers, d)
		}
	}
	for _, d := range daemonSets {
		switch {
		case isSpeaker(d) && isThere(d.Namespace):
			p.Speakers = append(p.Speakers, d)
		case isFRR(d):
			p.FRR = append(p.FRR, d)
		}
	}
}

// metalLBMove is what the commands of a move depend on.
type metalLBMove struct {
	About, Namespace, Chart, Holdfast, Label string
	// Controller and Speaker are names; "" for none.
	Controller, ControllerPods string
	Replicas                   int32
	Speaker, SpeakerPods       string
	// Mode is how the speakers run BGP: native, frr or frr-k8s.
	Mode string
	// FRRNamespace is where the speakers' FRRConfigurations are; "" in other modes if there are none.
	FRRNamespace string
	// VTYSH runs a command in the FRR of $node; "" if there is none.
	VTYSH string
	// Class is the only class of Services that MetalLB serves; "" if it serves those without one.
	Class string
	// Layer2, Peers and Advertisements: there are objects of these kinds.
	Layer2, Peers, Advertisements bool
	// Nodes are those whose sessions move, one after the other.
	Nodes []string
}

func selector(of *metav1.LabelSelector) string { return metav1.FormatLabelSelector(of) }

// move returns what the commands depend on.
func (p MetalLBParts) move(nodes []*corev1.Node, objects []runtime.Object) (v metalLBMove, err error) {
	v.Label, v.Mode, v.Replicas = migrationLabel, "native", 1
	if len(p.Controllers) > 1 || len(p.Speakers) > 1 {
		var all []string
		for _, d := range p.Controllers {
			all = append(all, "Deployment "+d.Namespace+"/"+d.Name)
		}
		for _, d := range p.Speakers {
			all = append(all, "DaemonSet "+d.Namespace+"/"+d.Name)
		}
		return v, fmt.Errorf(
			"MetalLB is installed more than once, as %s: choose one by --metallb-namespace",
			lb.SomeOf(all),
		)
	}
	var meta metav1.ObjectMeta
	for _, d := range p.Controllers {
		meta, v.Controller, v.ControllerPods = d.ObjectMeta, d.Name, selector(d.Spec.Selector)
		v.Class = argument(d.Spec.Template, "lb-class")
		if d.Spec.Replicas != nil {
			v.Replicas = max(*d.Spec.Replicas, 1)
		}
	}
	for _, d := range p.Speakers {
		meta, v.Speaker, v.SpeakerPods = d.ObjectMeta, d.Name, selector(d.Spec.Selector)
		mode, _ := variable(d.Spec.Template, named("METALLB_BGP_TYPE"))
		v.Mode = cmp.Or(mode, "native")
		v.Class = cmp.Or(v.Class, argument(d.Spec.Template, "lb-class"))
		if v.Mode == "frr-k8s" {
			variable, _ := variable(d.Spec.Template, named("FRRK8S_NAMESPACE"))
			v.FRRNamespace = cmp.Or(argument(d.Spec.Template, "frrk8s-namespace"), variable, d.Namespace)
		}
	}
	v.Namespace = meta.Namespace
	// All of these become words of a shell.
	switch {
	case v.Mode != "native" && v.Mode != "frr" && v.Mode != "frr-k8s":
		return v, fmt.Errorf("MetalLB's speaker runs BGP in the unknown mode %q", v.Mode)
	case v.Class != "" && len(validation.IsQualifiedName(v.Class)) > 0:
		return v, fmt.Errorf("MetalLB's flag --lb-class is the invalid class %q", v.Class)
	case v.FRRNamespace != "" && len(validation.IsDNS1123Label(v.FRRNamespace)) > 0:
		return v, fmt.Errorf("MetalLB's speaker writes FRRConfigurations into the invalid namespace %q", v.FRRNamespace)
	}
	ends := map[string]bool{} // nodes where MetalLB may have sessions
	for _, c := range p.FRRConfigurations {
		if node := c.node(); node != "" {
			ends[node], v.FRRNamespace = true, cmp.Or(v.FRRNamespace, c.Namespace)
		}
	}
	for _, pod := range p.SpeakerPods {
		if pod.Namespace == v.Namespace && v.Speaker != "" {
			ends[pod.Spec.NodeName] = true
		}
	}
	for _, o := range objects {
		switch o := o.(type) {
		case *v1beta1.L2Advertisement:
			v.Layer2 = true
		case *v1beta1.BGPAdvertisement:
			v.Advertisements = true
		case *v1beta1.BGPPeer:
			v.Peers = true
			for _, n := range nodes {
				if ends[n.Name] && selects(o.Spec.NodeSelectors, n.Labels) && !slices.Contains(v.Nodes, n.Name) {
					v.Nodes = append(v.Nodes, n.Name)
				}
			}
		}
	}
	slices.Sort(v.Nodes)
	if v.Mode == "frr" {
		v.VTYSH = vtysh(v.Namespace, v.SpeakerPods)
	}
	for _, d := range p.FRR {
		if v.Mode == "frr-k8s" && d.Namespace == v.FRRNamespace {
			v.VTYSH = vtysh(d.Namespace, selector(d.Spec.Selector))
		}
	}
	v.About = p.about(v, meta)
	return v, nil
}

// vtysh returns the command that asks the FRR of $node.
func vtysh(namespace, pods string) string {
	return fmt.Sprintf(
		"kubectl -n %[1]s exec $(kubectl -n %[1]s get pod --selector='%[2]s' --field-selector=spec.nodeName=$node -o "+
			"name) -c frr -- vtysh -c",
		namespace,
		pods,
	)
}

// selects reports whether any of the selectors selects these labels; none selects all, and an invalid one nothing.
func selects(of []metav1.LabelSelector, set map[string]string) bool {
	return len(of) == 0 || slices.ContainsFunc(of, func(one metav1.LabelSelector) bool {
		s, err := metav1.LabelSelectorAsSelector(&one)
		return err == nil && s.Matches(labels.Set(set))
	})
}

// about says which installation it is.
func (p MetalLBParts) about(v metalLBMove, meta metav1.ObjectMeta) string {
	if v.Controller == "" && v.Speaker == "" {
		return "no controller and no speaker of MetalLB is installed"
	}
	text := "MetalLB's manifest"
	if chart := meta.Labels["helm.sh/chart"]; chart != "" {
		text = fmt.Sprintf("MetalLB's chart %s, release %s,", chart, meta.Labels["app.kubernetes.io/instance"])
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

// keepers are labels and annotations of what writes objects again that someone else edits.
var keepers = []struct{ key, name string }{
	{"argocd.argoproj.io/tracking-id", "Argo CD"}, {"argocd.argoproj.io/instance", "Argo CD"},
	{"kustomize.toolkit.fluxcd.io/name", "Flux"}, {"helm.toolkit.fluxcd.io/name", "Flux"},
}

// keeper returns what would undo the commands of a move; "" for nothing.
func keeper(meta metav1.ObjectMeta) string {
	for _, owner := range meta.OwnerReferences {
		return owner.Kind + " " + owner.Name
	}
	for _, k := range keepers {
		if meta.Labels[k.key]+meta.Annotations[k.key] != "" {
			return k.name
		}
	}
	return ""
}

// parts reports which installation of MetalLB moves, and what of it has no counterpart.
func (m *Move) parts(p MetalLBParts) {
	v, err := p.move(m.Snapshot.Objects.Nodes, m.Objects)
	if err != nil {
		m.note(Problem, "installation", "run it again with that flag", "%v", err)
		return
	}
	m.MetalLB = v
	m.Report.add(Step{Name: "installation", Verdict: OK, Text: v.About})
	for what, why := range p.Unread {
		if what == frrConfigurations && v.Mode != "frr-k8s" {
			continue // FRR-K8s need not be installed
		}
		m.note(Note, "installation", "", "the list of %s is not complete: %s", what, why)
	}
	var owned []metav1.ObjectMeta
	for _, d := range p.Controllers {
		owned = append(owned, d.ObjectMeta)
	}
	for _, d := range p.Speakers {
		owned = append(owned, d.ObjectMeta)
	}
	for _, one := range owned {
		if by := keeper(one); by != "" {
			m.note(
				Problem,
				one.Name,
				"suspend "+by+" until the move has ended",
				"%s writes it, and would undo the commands of the move",
				by,
			)
		}
	}
	routers := map[string]string{}
	for _, o := range m.Objects {
		if peer, ok := o.(*v1beta1.BGPPeer); ok {
			routers[cmp.Or(peer.Spec.PeerAddress, peer.Spec.Interface)] = peer.Name
		}
	}
	for _, c := range p.FRRConfigurations {
		if c.node() == "" {
			m.Report.add(c.step(routers))
		}
	}
}

// step is about an FRRConfiguration of a user.
func (c *FRRConfiguration) step(routers map[string]string) Step {
	s := Step{Name: fmt.Sprintf("FRRConfiguration %s/%s", c.Namespace, c.Name), Verdict: Note,
		Text: "MetalLB did not write it, and nothing in Holdfast corresponds to it: FRR-K8s keeps it, so let FRR-K8s run, " +
			"or do without it"}
	for _, r := range c.Spec.BGP.Routers {
		for _, n := range r.Neighbors {
			address := cmp.Or(n.Address, n.Interface)
			peer, isShared := routers[address]
			if !isShared {
				continue
			}
			s.Verdict = Problem
			s.Text = fmt.Sprintf(
				"MetalLB did not write it, nothing in Holdfast corresponds to it, and its neighbor %s is the router "+
					"of BGPPeer %s, which accepts one session from a node: FRR-K8s keeps it",
				address,
				peer,
			)
			s.Do = "remove neighbor " + address + " from FRRConfiguration " + c.Namespace + "/" + c.Name +
				" before step BGP, or leave BGP with MetalLB"
		}
	}
	return s
}

// wait lets peers have sessions only on nodes with the label of the move, among those that they select.
func wait(objects []runtime.Object) {
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

// print prints the commands of a move and of the way back.
func (v metalLBMove) print(w io.Writer) error {
	t := template.New("commands").Delims("<%", "%>").Funcs(template.FuncMap{"join": strings.Join})
	return template.Must(t.Parse(metalLBCommands)).Execute(w, v)
}
