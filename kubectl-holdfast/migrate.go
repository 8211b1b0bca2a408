package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/internal/explain"
	"github.com/spf13/cobra"
	"gopkg.in/gcfg.v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"
)

func (s *seat) migrate() *cobra.Command {
	var files []string
	var since, conf string
	var check bool
	type mover = func(context.Context, explain.Snapshot, []*corev1.Service) (explain.Move, error)
	with := func(use, short string, move mover) *cobra.Command {
		return &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) (err error) {
			cluster := explain.Snapshot{Now: time.Now(), Namespace: s.namespace, Options: optionsOf(nil)}
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
			m, err := move(cmd.Context(), cluster, before.Objects.Services)
			if err == nil && !check {
				err = s.printObjects(cmd.OutOrStdout(), m.Objects)
				cmd.SetOut(cmd.ErrOrStderr()) // standard output is for kubectl apply
			}
			if err != nil {
				return err
			}
			return s.say(cmd, m.Report)
		}}
	}
	metalLB := with("metallb", "Print Holdfast's objects for MetalLB's", func(ctx context.Context, c explain.Snapshot, before []*corev1.Service) (
		explain.Move, error) {
		objects, err := s.readMetalLB(ctx, files, c.Unread)
		return c.MetalLB(objects, before), err
	})
	metalLB.Flags().StringSliceVarP(&files, "filename", "f", nil, "files with MetalLB's objects, in place of the cluster; - is standard input")
	openStack := with("openstack", "Print pools and FloatingIPs for OpenStack's", func(_ context.Context, c explain.Snapshot, before []*corev1.Service) (
		explain.Move, error) {
		var cloud explain.Cloud
		err := gcfg.FatalOnly(gcfg.ReadFileInto(&cloud, conf)) // it has more than is read
		return c.OpenStack(cloud, before), err
	})
	openStack.Flags().StringVar(&conf, "cloud-conf", "", "configuration `file` of OpenStack's cloud controller manager")
	_ = openStack.MarkFlagRequired("cloud-conf")
	cmd := &cobra.Command{
		Use: "migrate", Short: "Print what takes the place of another load balancer's objects, and on standard error what differs",
		Long: "It changes nothing. The functions that the daemons run decide whether each Service keeps its addresses.",
		Example: `  kubectl holdfast migrate metallb > holdfast.yaml
  kubectl holdfast bundle before.gz; kubectl holdfast migrate metallb --check --since before.gz`,
	}
	cmd.PersistentFlags().BoolVar(&check, "check", false, "print the report only, on standard output")
	cmd.PersistentFlags().StringVar(&since, "since", "", "compare with the addresses in this `file`, which the command bundle wrote before the move")
	cmd.AddCommand(metalLB, openStack)
	return cmd
}

// readMetalLB reads MetalLB's objects from files, or from the cluster in the order in which ours are to be created.
func (s *seat) readMetalLB(ctx context.Context, files []string, unread map[string]string) (out []runtime.Object, err error) {
	if files != nil || s.from != "" {
		return readFiles(files)
	}
	config, err := s.cluster.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	r, err := newReader(config, "")
	if err != nil {
		return nil, err
	}
	for _, of := range []string{"v1beta1/ipaddresspools", "v1beta1/communities", "v1beta1/bfdprofiles", "v1beta2/bgppeers", "v1beta1/bgpadvertisements",
		"v1beta1/l2advertisements"} {
		var found []*json.RawMessage
		version, resource, _ := strings.Cut(of, "/")
		if err := list(r, "/apis/metallb.io/"+version, resource, "", "", &found)(ctx); err != nil {
			return nil, err
		}
		for _, text := range found {
			o, _, err := serializer.NewCodecFactory(scheme).UniversalDeserializer().Decode(*text, nil, nil)
			if err != nil {
				return nil, fmt.Errorf("read %s of MetalLB: %w", resource, err)
			}
			out = append(out, o)
		}
		if why, failed := r.snapshot.Unread[resource]; failed {
			unread["MetalLB's "+resource] = why
		}
	}
	return out, nil
}

// printObjects prints objects for kubectl apply.
func (s *seat) printObjects(w io.Writer, objects []runtime.Object) error {
	var items []any
	var texts []string
	for _, o := range objects {
		item, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return err
		}
		delete(item, "status")
		metadata := item["metadata"].(map[string]any)
		maps.DeleteFunc(metadata, func(key string, _ any) bool {
			return !slices.Contains([]string{"name", "namespace", "labels", "annotations"}, key)
		})
		unstructured.RemoveNestedField(metadata, "annotations", corev1.LastAppliedConfigAnnotation)
		text, err := yaml.Marshal(item)
		if err != nil {
			return err
		}
		items, texts = append(items, item), append(texts, string(text))
	}
	return s.show(w, map[string]any{"apiVersion": "v1", "kind": "List", "items": items}, func(w io.Writer) error {
		_, err := io.WriteString(w, strings.Join(texts, "---\n"))
		return err
	})
}
