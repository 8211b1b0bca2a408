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
const metalLB = "ipaddresspools.v1beta1.metallb.io,communities.v1beta1.metallb.io,bfdprofiles.v1beta1.metallb.io,bgppeers.v1beta2.metallb.io," +
	"bgpadvertisements.v1beta1.metallb.io,l2advertisements.v1beta1.metallb.io"

// objects reads MetalLB's objects from files or, without files, from the cluster or one namespace of it.
func (s *seat) objects(files []string, namespace string) (out []runtime.Object, err error) {
	if files != nil {
		return s.fromFiles(files, metalLBGroup)
	}
	scheme := newScheme()
	return s.ofCluster(resource.NewBuilder(s.cluster).WithScheme(scheme, scheme.PrioritizedVersionsAllGroups()...), namespace)
}

// ofCluster reads MetalLB's objects from the cluster, or one namespace of it.
func (s *seat) ofCluster(builder *resource.Builder, namespace string) (out []runtime.Object, err error) {
	infos, err := builder.ResourceTypeOrNameArgs(true, metalLB).NamespaceParam(namespace).AllNamespaces(namespace == "").
		RequestChunksOf(pageSize).Flatten().Do().Infos()
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
		list(s.reader, p.Unread, "/apis/frrk8s.metallb.io/v1beta1", frrConfigurations, "", metav1.ListOptions{}, &p.FRRConfigurations),
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
var movable = []string{"IPAddressPool", "Community", "BFDProfile", "BGPPeer", "BGPAdvertisement", "L2Advertisement", "FloatingIP"}

func (s *seat) migrate() *cobra.Command {
	var files, only []string
	var since, conf, metalLBNamespace, chart string
	var check, originals, isWaiting, commands bool
	run := func(move func(Snapshot, []*corev1.Service) (Move, error)) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, _ []string) (err error) {
			for _, kind := range only {
				if !slices.Contains(movable, kind) {
					return fmt.Errorf("unknown kind %q: %s are known", kind, strings.Join(movable, ", "))
				}
			}
			cluster := Snapshot{Now: time.Now(), Namespace: s.namespace}
			cluster.ReadOptions()
			if files == nil || s.from != "" {
				cluster, err = s.read(cmd.Context(), "")
			}
			before := cluster
			if err == nil && since != "" {
				before, err = readBundle(since)
			}
			if err != nil {
				return err
			}
			m, err := move(cluster, before.Objects.Services)
			switch {
			case err != nil || check:
			case commands:
				if m.MetalLB.About != "" { // otherwise the report says why
					m.MetalLB.Chart, m.MetalLB.Holdfast = chart, s.namespace
					err = m.MetalLB.print(cmd.OutOrStdout())
				}
				cmd.SetOut(cmd.ErrOrStderr())
			default:
				if isWaiting {
					wait(m.Objects)
				}
				err = s.printObjects(cmd.OutOrStdout(), slices.DeleteFunc(m.Objects, func(o runtime.Object) bool {
					return only != nil && !slices.Contains(only, o.GetObjectKind().GroupVersionKind().Kind)
				}))
				cmd.SetOut(cmd.ErrOrStderr()) // standard output is for kubectl apply
			}
			if err != nil {
				return err
			}
			return s.say(cmd, m.Report)
		}
	}
	fromMetalLB := &cobra.Command{Use: "metallb", Short: "Print Holdfast's objects for MetalLB's", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if originals {
				objects, err := s.originals(metalLBNamespace)
				if err != nil {
					return err
				}
				return s.printObjects(cmd.OutOrStdout(), objects)
			}
			return run(func(c Snapshot, before []*corev1.Service) (m Move, err error) {
				var objects []runtime.Object
				if files != nil || since == "" { // after the move there may be none
					objects, err = s.objects(files, metalLBNamespace)
				}
				if err == nil && s.reader != nil {
					c.MetalLBParts, err = s.metalLBParts(cmd.Context(), metalLBNamespace)
				}
				if commands && c.MetalLBParts == nil {
					return m, errors.New("--commands needs the cluster that MetalLB runs in")
				}
				return c.MetalLB(objects, before), err
			})(cmd, args)
		}}
	fromMetalLB.Flags().StringSliceVarP(&files, "filename", "f", nil, "files with MetalLB's objects, in place of the cluster; - is standard input")
	fromMetalLB.Flags().StringVar(&metalLBNamespace, "metallb-namespace", "", "`namespace` of MetalLB; all without it")
	fromMetalLB.Flags().BoolVar(&commands, "commands", false, "print the commands that move this cluster without an outage, and back")
	fromMetalLB.Flags().StringVar(&chart, "chart", "dist/holdfast-*.tgz", "Holdfast's `chart` in the commands, as helm takes it")
	fromMetalLB.Flags().BoolVar(&isWaiting, "waiting", false, "let BGPPeers wait until their nodes are labelled "+migrationLabel+"=holdfast")
	fromMetalLB.Flags().BoolVar(&originals, "originals", false, "print MetalLB's own objects, to go back to MetalLB")
	fromMetalLB.MarkFlagsMutuallyExclusive("commands", "originals", "waiting")
	fromMetalLB.MarkFlagsMutuallyExclusive("filename", "originals")
	openStack := &cobra.Command{Use: "openstack", Short: "Print pools and FloatingIPs for OpenStack's", Args: cobra.NoArgs,
		RunE: run(func(c Snapshot, before []*corev1.Service) (Move, error) {
			var cloud Cloud
			err := gcfg.FatalOnly(gcfg.ReadFileInto(&cloud, conf)) // it has more than is read
			return c.OpenStack(cloud, before), err
		})}
	openStack.Flags().StringVar(&conf, "cloud-conf", "", "configuration `file` of OpenStack's cloud controller manager")
	_ = openStack.MarkFlagRequired("cloud-conf")
	cmd := &cobra.Command{Use: "migrate", Short: "Print what takes the place of another load balancer's objects, and on standard error what differs",
		RunE: func(_ *cobra.Command, args []string) error {
			return fmt.Errorf("unknown load balancer %q: metallb and openstack are known", strings.Join(args, " "))
		}}
	cmd.PersistentFlags().BoolVar(&check, "check", false, "print the report only, on standard output")
	cmd.PersistentFlags().StringSliceVar(&only, "only", nil, "print objects of these `kinds` only")
	cmd.PersistentFlags().StringVar(&since, "since", "", "after the move: compare with the addresses in this `file`, which the command bundle wrote before")
	cmd.AddCommand(fromMetalLB, openStack)
	return cmd
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
