package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"gopkg.in/gcfg.v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/resource"
)

// metalLB are MetalLB's resources, in the order in which ours are to be created.
const metalLB = "ipaddresspools.v1beta1.metallb.io,communities.v1beta1.metallb.io,bfdprofiles.v1beta1.metallb.io,bgppeers.v1beta2.metallb.io," +
	"bgpadvertisements.v1beta1.metallb.io,l2advertisements.v1beta1.metallb.io"

// objects reads MetalLB's objects from files or, without files, from the cluster.
func (s *seat) objects(files []string) (out []runtime.Object, err error) {
	if files != nil {
		return s.fromFiles(files, metalLBGroup)
	}
	scheme := newScheme()
	infos, err := resource.NewBuilder(s.cluster).WithScheme(scheme, scheme.PrioritizedVersionsAllGroups()...).
		ResourceTypeOrNameArgs(true, metalLB).AllNamespaces(true).RequestChunksOf(pageSize).Flatten().Do().Infos()
	if err != nil {
		return nil, fmt.Errorf("read the objects: %w", err)
	}
	for _, info := range infos {
		out = append(out, info.Object)
	}
	return out, nil
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
	var since, conf string
	var check bool
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
			if err == nil && !check {
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
		RunE: run(func(c Snapshot, before []*corev1.Service) (m Move, err error) {
			var objects []runtime.Object
			if files != nil || since == "" { // after the move there may be none
				objects, err = s.objects(files)
			}
			return c.MetalLB(objects, before), err
		})}
	fromMetalLB.Flags().StringSliceVarP(&files, "filename", "f", nil, "files with MetalLB's objects, in place of the cluster; - is standard input")
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
