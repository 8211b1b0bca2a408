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

// metalLBResources are MetalLB's resources, in the order in which Holdfast's must be created.
const metalLBResources = "ipaddresspools.v1beta1.metallb.io,communities.v1beta1.metallb.io," +
	"bfdprofiles.v1beta1.metallb.io,bgppeers.v1beta2.metallb.io," +
	"bgpadvertisements.v1beta1.metallb.io,l2advertisements.v1beta1.metallb.io"

// readMetalLB reads MetalLB's objects from files or, without files, from the cluster or one namespace of it.
func (c *cli) readMetalLB(files []string, namespace string) (out []runtime.Object, err error) {
	if files != nil {
		return c.fromFiles(files, metalLBGroup)
	}

	scheme := newScheme()
	builder := resource.NewBuilder(c.cluster).WithScheme(scheme, scheme.PrioritizedVersionsAllGroups()...)
	return fromCluster(builder, namespace)
}

// fromCluster reads MetalLB's objects from the cluster, or one namespace of it.
func fromCluster(builder *resource.Builder, namespace string) (out []runtime.Object, err error) {
	infos, err := builder.ResourceTypeOrNameArgs(true, metalLBResources).
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

// readOriginals reads MetalLB's objects as their users wrote them, so that kubectl apply restores them.
func (c *cli) readOriginals(namespace string) (out []runtime.Object, err error) {
	objects, err := fromCluster(resource.NewBuilder(c.cluster).Unstructured(), namespace)
	for _, o := range objects {
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

// readMetalLBParts reads how MetalLB runs in the cluster, or in one namespace of it.
func (c *cli) readMetalLBParts(ctx context.Context, namespace string) (*MetalLBParts, error) {
	const frrAPI = "/apis/frrk8s.metallb.io/v1beta1"
	var all metav1.ListOptions
	var deployments []*appsv1.Deployment
	var daemonSets []*appsv1.DaemonSet
	p := MetalLBParts{Unread: map[string]string{}}
	err := inOrder(ctx, []readFunc{
		list(c.reader, p.Unread, appsAPI, Controller, "", all, &deployments),
		list(c.reader, p.Unread, appsAPI, Speakers, "", all, &daemonSets),
		list(c.reader, p.Unread, frrAPI, frrConfigurations, "", all, &p.FRRConfigurations),
	})
	if err != nil {
		return nil, err
	}

	p.addWorkloads(deployments, daemonSets, namespace)
	for _, d := range p.Speakers {
		options := withLabels(metav1.FormatLabelSelector(d.Spec.Selector))
		read := list(c.reader, p.Unread, coreAPI, Pods, d.Namespace, options, &p.SpeakerPods)
		err := read(ctx)
		if err != nil {
			return nil, err
		}
	}

	return &p, nil
}

// fromFiles reads objects from files, and asks no server. Objects of these groups get the types that the daemons read;
// all others stay unstructured.
func (c *cli) fromFiles(files []string, groups ...string) (out []runtime.Object, err error) {
	if files == nil {
		return nil, nil
	}

	infos, err := resource.NewBuilder(c.cluster).
		Unstructured().
		Local().
		FilenameParam(false, &resource.FilenameOptions{Filenames: files}).
		Flatten().
		Do().
		Infos()

	if err != nil {
		return nil, fmt.Errorf("read the objects: %w", err)
	}

	scheme := newScheme()
	for _, info := range infos {
		object := info.Object
		kind := object.GetObjectKind().GroupVersionKind()
		if slices.Contains(groups, kind.Group) && !isStatusOfMetalLB(kind) {
			object, err = decodeTyped(scheme, info)
			if err != nil {
				return nil, err
			}
		}

		out = append(out, object)
	}

	return out, nil
}

// decodeTyped returns an object with the type of its kind.
func decodeTyped(scheme *runtime.Scheme, info *resource.Info) (runtime.Object, error) {
	kind := info.Object.GetObjectKind().GroupVersionKind()
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

	return typed, nil
}

// movable are the kinds of the objects that a move may print.
var movable = []string{
	"IPAddressPool",
	"Community",
	"BFDProfile",
	"BGPPeer",
	"BGPAdvertisement",
	"L2Advertisement",
	"FloatingIP",
}

// newMigrate returns the command migrate.
func (c *cli) newMigrate() *cobra.Command {
	m := &migration{cli: c}
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

	cmd.AddCommand(m.newMetalLB(), m.newOpenStack())
	return cmd
}

// migration is the command migrate with its flags.
type migration struct {
	*cli
	// files have MetalLB's objects, and cloud is the file with OpenStack's configuration.
	files []string
	cloud string
	// since is a bundle from before the move.
	since string
	// metalLBNamespace is the namespace of MetalLB; "" for all.
	metalLBNamespace string
	// chart is Holdfast's chart in the commands.
	chart string
	// only are the kinds to print; nil for all.
	only []string

	isCheck        bool
	isWaiting      bool
	wantsOriginals bool
	wantsCommands  bool
}

// newMetalLB returns the command migrate metallb.
func (m *migration) newMetalLB() *cobra.Command {
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

	flags.StringVar(&m.metalLBNamespace, "metallb-namespace", "", "`namespace` of MetalLB; all without it")
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

// runMetalLB prints MetalLB's own objects, or the move from MetalLB.
func (m *migration) runMetalLB(cmd *cobra.Command, _ []string) error {
	if !m.wantsOriginals {
		return m.run(cmd, m.moveMetalLB)
	}

	objects, err := m.readOriginals(m.metalLBNamespace)
	if err != nil {
		return err
	}

	return m.printObjects(cmd.OutOrStdout(), objects)
}

// moveMetalLB reads MetalLB's objects and how it runs, and returns the move.
func (m *migration) moveMetalLB(ctx context.Context, s Snapshot, before []*corev1.Service) (Move, error) {
	var objects []runtime.Object
	var err error
	mayBeGone := m.files == nil && m.since != ""
	if !mayBeGone {
		objects, err = m.readMetalLB(m.files, m.metalLBNamespace)
	}

	if err == nil && m.reader != nil {
		s.MetalLBParts, err = m.readMetalLBParts(ctx, m.metalLBNamespace)
	}

	if m.wantsCommands && s.MetalLBParts == nil {
		return Move{}, errors.New("--commands needs the cluster that MetalLB runs in")
	}

	return s.MetalLB(objects, before), err
}

// newOpenStack returns the command migrate openstack.
func (m *migration) newOpenStack() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "openstack",
		Short: "Print pools and FloatingIPs for OpenStack's",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.run(cmd, m.moveOpenStack)
		},
	}

	cmd.Flags().StringVar(&m.cloud, "cloud-conf", "", "configuration `file` of OpenStack's cloud controller manager")
	_ = cmd.MarkFlagRequired("cloud-conf")
	return cmd
}

// moveOpenStack reads OpenStack's configuration, and returns the move.
func (m *migration) moveOpenStack(_ context.Context, s Snapshot, before []*corev1.Service) (Move, error) {
	var cloud Cloud
	err := gcfg.FatalOnly(gcfg.ReadFileInto(&cloud, m.cloud)) // the file has more settings than Cloud
	return s.OpenStack(cloud, before), err
}

// moveFunc returns the move of a cluster, and of the Services as they were before.
type moveFunc func(ctx context.Context, s Snapshot, before []*corev1.Service) (Move, error)

// run reads the cluster, moves it, and prints the result. The move gets the Services of the bundle from before the move
// if there is one.
func (m *migration) run(cmd *cobra.Command, move moveFunc) error {
	for _, kind := range m.only {
		if !slices.Contains(movable, kind) {
			return fmt.Errorf("unknown kind %q: %s are known", kind, strings.Join(movable, ", "))
		}
	}

	cluster, err := m.readBase(cmd.Context())
	if err != nil {
		return err
	}

	before := cluster
	if m.since != "" {
		before, err = readBundle(m.since)
		if err != nil {
			return err
		}
	}

	result, err := move(cmd.Context(), cluster, before.Objects.Services)
	if err != nil {
		return err
	}

	err = m.print(cmd, result)
	if err != nil {
		return err
	}

	return m.printReports(cmd, result.Report)
}

// readBase returns the cluster in which the objects move. If the objects are in files, it is an empty one.
func (m *migration) readBase(ctx context.Context) (Snapshot, error) {
	if m.files == nil || m.from != "" {
		return m.read(ctx, "")
	}

	empty := Snapshot{Now: time.Now(), Namespace: m.namespace}
	empty.ReadOptions()
	return empty, nil
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
			return nil // the report has the reason
		}

		result.MetalLB.Chart = m.chart
		result.MetalLB.Holdfast = m.namespace
		return result.MetalLB.print(out)
	}

	if m.isWaiting {
		deferSessions(result.Objects)
	}

	isUnwanted := func(o runtime.Object) bool {
		kind := o.GetObjectKind().GroupVersionKind().Kind
		return m.only != nil && !slices.Contains(m.only, kind)
	}

	return m.printObjects(out, slices.DeleteFunc(result.Objects, isUnwanted))
}

// printObjects prints objects as one List, without their status.
func (c *cli) printObjects(w io.Writer, objects []runtime.Object) error {
	items := []any{}
	for _, o := range objects {
		item, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return err
		}

		delete(item, "status")
		items = append(items, item)
	}

	list := map[string]any{
		"apiVersion": "v1",
		"kind":       "List",
		"items":      items,
	}

	return encode(w, cmp.Or(c.output, "yaml"), list)
}
