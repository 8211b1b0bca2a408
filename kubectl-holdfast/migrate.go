package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"gopkg.in/gcfg.v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/resource"
)

// metalLB are MetalLB's resources, in the order in which ours are to be created.
const metalLB = "ipaddresspools.v1beta1.metallb.io,communities.v1beta1.metallb.io,bfdprofiles.v1beta1.metallb.io," +
	"bgppeers.v1beta2.metallb.io,bgpadvertisements.v1beta1.metallb.io,l2advertisements.v1beta1.metallb.io"

// objects reads MetalLB's objects from files or, without files, from the cluster or one namespace of it.
func (s *seat) objects(files []string, namespace string) (out []runtime.Object, err error) {
	if files != nil {
		return s.fromFiles(files, metalLBGroup)
	}
	scheme := newScheme()
	return s.ofCluster(
		resource.NewBuilder(s.cluster).WithScheme(scheme, scheme.PrioritizedVersionsAllGroups()...),
		namespace,
	)
}

// ofCluster reads MetalLB's objects from the cluster, or one namespace of it.
func (s *seat) ofCluster(builder *resource.Builder, namespace string) (out []runtime.Object, err error) {
	infos, err := builder.ResourceTypeOrNameArgs(true, metalLB).
		NamespaceParam(namespace).
		AllNamespaces(namespace == "").
		RequestChunksOf(pageSize).
		Flatten().
		Do().
		Infos()
	if err != nil {
		return nil, fmt.Errorf("read the objects: %w", err)
	}
	for _, info := range infos {
		out = append(out, info.Object)
	}
	return out, nil
}

// originals reads MetalLB's objects as their users wrote them, so that kubectl apply restores them.
func (s *seat) originals(namespace string) (out []runtime.Object, err error) {
	all, err := s.ofCluster(resource.NewBuilder(s.cluster).Unstructured(), namespace)
	for _, o := range all {
		read := o.(*unstructured.Unstructured)
		annotations := read.GetAnnotations()
		delete(annotations, corev1.LastAppliedConfigAnnotation)

		kept := &unstructured.Unstructured{Object: map[string]any{"spec": read.Object["spec"]}}
		kept.SetGroupVersionKind(read.GroupVersionKind())
		kept.SetNamespace(read.GetNamespace())
		kept.SetName(read.GetName())
		kept.SetLabels(read.GetLabels())
		kept.SetAnnotations(annotations)
		out = append(out, kept)
	}
	return out, err
}

// metalLBParts reads how MetalLB runs in the cluster, or in one namespace of it.
func (s *seat) metalLBParts(ctx context.Context, namespace string) (*MetalLBParts, error) {
	p := MetalLBParts{Unread: map[string]string{}}
	var deployments []*appsv1.Deployment
	var daemonSets []*appsv1.DaemonSet
	for _, read := range []func(context.Context) error{
		list(s.reader, p.Unread, "/apis/apps/v1", Controller, "", metav1.ListOptions{}, &deployments),
		list(s.reader, p.Unread, "/apis/apps/v1", Speakers, "", metav1.ListOptions{}, &daemonSets),
		list(s.reader, p.Unread, "/apis/frrk8s.metallb.io/v1beta1", frrConfigurations, "", metav1.ListOptions{},
			&p.FRRConfigurations),
	} {
		if err := read(ctx); err != nil {
			return nil, err
		}
	}
	p.sort(deployments, daemonSets, namespace)
	for _, d := range p.Speakers {
		of := metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector)}
		if err := list(s.reader, p.Unread, "/api/v1", Pods, d.Namespace, of, &p.SpeakerPods)(ctx); err != nil {
			return nil, err
		}
	}
	return &p, nil
}

// fromFiles reads objects from files, and asks no server. Objects of these groups have the types that the daemons read;
// all others stay unstructured.
func (s *seat) fromFiles(files []string, groups ...string) (out []runtime.Object, err error) {
	if files == nil {
		return nil, nil
	}
	infos, err := resource.NewBuilder(s.cluster).Unstructured().Local().
		FilenameParam(false, &resource.FilenameOptions{Filenames: files}).Flatten().Do().Infos()
	if err != nil {
		return nil, fmt.Errorf("read the objects: %w", err)
	}
	scheme := newScheme()
	for _, info := range infos {
		kind := info.Object.GetObjectKind().GroupVersionKind()
		if !slices.Contains(groups, kind.Group) || isStatusOfMetalLB(kind) {
			out = append(out, info.Object)
			continue
		}
		typed, err := scheme.New(kind)
		if err != nil {
			return nil, fmt.Errorf("read the objects: %w", err)
		}
		text, err := json.Marshal(info.Object)
		if err == nil {
			err = json.Unmarshal(text, typed)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s %s: %w", kind.Kind, info.Name, err)
		}
		out = append(out, typed)
	}
	return out, nil
}

// movable are the kinds that a move makes.
var movable = []string{
	"IPAddressPool",
	"Community",
	"BFDProfile",
	"BGPPeer",
	"BGPAdvertisement",
	"L2Advertisement",
	"FloatingIP",
}

func (s *seat) migrate() *cobra.Command {
	m := &migration{seat: s}
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Print what takes the place of another load balancer's objects, and on standard error what differs",
		RunE: func(_ *cobra.Command, args []string) error {
			return fmt.Errorf("unknown load balancer %q: metallb and openstack are known", strings.Join(args, " "))
		},
	}
	flags := cmd.PersistentFlags()
	flags.BoolVar(&m.isCheck, "check", false, "print the report only, on standard output")
	flags.StringSliceVar(&m.only, "only", nil, "print objects of these `kinds` only")
	flags.StringVar(
		&m.since,
		"since",
		"",
		"after the move: compare with the addresses in this `file`, which the command bundle wrote before",
	)
	cmd.AddCommand(m.fromMetalLB(), m.fromOpenStack())
	return cmd
}

// migration is the command migrate with its flags.
type migration struct {
	*seat
	files, only                   []string
	since, cloud, namespace       string
	chart                         string
	isCheck, isWaiting            bool
	wantsOriginals, wantsCommands bool
}

func (m *migration) fromMetalLB() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "metallb",
		Short: "Print Holdfast's objects for MetalLB's",
		Args:  cobra.NoArgs,
		RunE:  m.runMetalLB,
	}
	flags := cmd.Flags()
	flags.StringSliceVarP(
		&m.files,
		"filename",
		"f",
		nil,
		"files with MetalLB's objects, in place of the cluster; - is standard input",
	)
	flags.StringVar(&m.namespace, "metallb-namespace", "", "`namespace` of MetalLB; all without it")
	flags.BoolVar(
		&m.wantsCommands,
		"commands",
		false,
		"print the commands that move this cluster without an outage, and back",
	)
	flags.StringVar(&m.chart, "chart", "dist/holdfast-*.tgz", "Holdfast's `chart` in the commands, as helm takes it")
	flags.BoolVar(
		&m.isWaiting,
		"waiting",
		false,
		"let BGPPeers wait until their nodes are labelled "+migrationLabel+"=holdfast",
	)
	flags.BoolVar(&m.wantsOriginals, "originals", false, "print MetalLB's own objects, to go back to MetalLB")
	cmd.MarkFlagsMutuallyExclusive("commands", "originals", "waiting")
	cmd.MarkFlagsMutuallyExclusive("filename", "originals")
	return cmd
}

func (m *migration) runMetalLB(cmd *cobra.Command, _ []string) error {
	if m.wantsOriginals {
		objects, err := m.originals(m.namespace)
		if err != nil {
			return err
		}
		return m.printObjects(cmd.OutOrStdout(), objects)
	}
	return m.run(cmd, func(c Snapshot, before []*corev1.Service) (Move, error) {
		var objects []runtime.Object
		var err error
		if m.files != nil || m.since == "" { // after the move there may be none
			objects, err = m.objects(m.files, m.namespace)
		}
		if err == nil && m.reader != nil {
			c.MetalLBParts, err = m.metalLBParts(cmd.Context(), m.namespace)
		}
		if m.wantsCommands && c.MetalLBParts == nil {
			return Move{}, errors.New("--commands needs the cluster that MetalLB runs in")
		}
		return c.MetalLB(objects, before), err
	})
}

func (m *migration) fromOpenStack() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "openstack",
		Short: "Print pools and FloatingIPs for OpenStack's",
		Args:  cobra.NoArgs,
		RunE:  m.runOpenStack,
	}
	cmd.Flags().StringVar(&m.cloud, "cloud-conf", "", "configuration `file` of OpenStack's cloud controller manager")
	_ = cmd.MarkFlagRequired("cloud-conf")
	return cmd
}

func (m *migration) runOpenStack(cmd *cobra.Command, _ []string) error {
	return m.run(cmd, func(c Snapshot, before []*corev1.Service) (Move, error) {
		var cloud Cloud
		err := gcfg.FatalOnly(gcfg.ReadFileInto(&cloud, m.cloud)) // it has more than is read
		return c.OpenStack(cloud, before), err
	})
}

// run reads the cluster, moves it, and prints the result. The move gets the Services as they were before, if the flag
// since names them.
func (m *migration) run(cmd *cobra.Command, move func(Snapshot, []*corev1.Service) (Move, error)) (err error) {
	for _, kind := range m.only {
		if !slices.Contains(movable, kind) {
			return fmt.Errorf("unknown kind %q: %s are known", kind, strings.Join(movable, ", "))
		}
	}
	cluster := Snapshot{Now: time.Now(), Namespace: m.seat.namespace}
	cluster.ReadOptions()
	if m.files == nil || m.from != "" {
		cluster, err = m.read(cmd.Context(), "")
		if err != nil {
			return err
		}
	}
	before := cluster
	if m.since != "" {
		before, err = readBundle(m.since)
		if err != nil {
			return err
		}
	}
	result, err := move(cluster, before.Objects.Services)
	if err != nil {
		return err
	}
	if err := m.print(cmd, result); err != nil {
		return err
	}
	return m.say(cmd, result.Report)
}

// print prints the commands or the objects of a move. Standard output is then for a shell or for kubectl apply, and the
// report goes to standard error.
func (m *migration) print(cmd *cobra.Command, result Move) error {
	if m.isCheck {
		return nil
	}
	out := cmd.OutOrStdout()
	cmd.SetOut(cmd.ErrOrStderr())
	if m.wantsCommands {
		if result.MetalLB.About == "" {
			return nil // the report says why
		}
		result.MetalLB.Chart, result.MetalLB.Holdfast = m.chart, m.seat.namespace
		return result.MetalLB.print(out)
	}
	if m.isWaiting {
		wait(result.Objects)
	}
	return m.printObjects(out, slices.DeleteFunc(result.Objects, func(o runtime.Object) bool {
		return m.only != nil && !slices.Contains(m.only, o.GetObjectKind().GroupVersionKind().Kind)
	}))
}

func (s *seat) printObjects(w io.Writer, objects []runtime.Object) error {
	items := []any{}
	for _, o := range objects {
		item, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return err
		}
		delete(item, "status")
		items = append(items, item)
	}
	return encode(w, cmp.Or(s.output, "yaml"), map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
}
