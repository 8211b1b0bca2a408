package main

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hidden replaces a value that a bug report must not have.
const hidden = "unread"

// hideSecrets removes what a bug report must not have, and lists in LeftOut what it lacks. It changes the objects:
// snapshots share them with nothing.
func (s *Snapshot) hideSecrets() {
	s.LeftOut = []string{
		"Secrets are not read; passwords in BGPPeers and the values of the daemons' environment are replaced; labels, " +
			"annotations and fields of Services and Nodes are as they are; of pods in namespaces with " +
			config.AnnotationEgress + " only labels, nodes and addresses are there, and of others nothing",
	}

	if s.Controller != nil {
		hideEnvironment(&s.Controller.ObjectMeta, &s.Controller.Spec.Template)
	}

	if s.Speakers != nil {
		hideEnvironment(&s.Speakers.ObjectMeta, &s.Speakers.Spec.Template)
	}

	for _, pod := range slices.Concat(s.Pods, s.Controllers) {
		hideEnvironment(&pod.ObjectMeta, &corev1.PodTemplateSpec{Spec: pod.Spec})
	}

	for _, p := range s.Objects.Peers {
		if p.Spec.Password != "" {
			p.Spec.Password = hidden
		}

		delete(p.Annotations, corev1.LastAppliedConfigAnnotation) // it repeats the password
	}

	for _, resource := range slices.Sorted(maps.Keys(s.Unread)) {
		s.LeftOut = append(s.LeftOut, resource+": "+s.Unread[resource])
	}

	for _, pod := range slices.Sorted(maps.Keys(s.Silent)) {
		s.LeftOut = append(s.LeftOut, "the page of pod "+pod+": "+s.Silent[pod])
	}
}

// hideEnvironment replaces the values of the environment of a daemon's containers, which may have tokens and proxies.
// The annotation of kubectl apply repeats them.
func hideEnvironment(object *metav1.ObjectMeta, pod *corev1.PodTemplateSpec) {
	delete(object.Annotations, corev1.LastAppliedConfigAnnotation)
	delete(pod.Annotations, corev1.LastAppliedConfigAnnotation)
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		hideValues(c.Env)
	}

	for _, c := range pod.Spec.EphemeralContainers {
		hideValues(c.Env)
	}
}

// hideValues replaces the values of environment variables.
func hideValues(env []corev1.EnvVar) {
	for i := range env {
		if env[i].Value != "" {
			env[i].Value = hidden
		}
	}
}

// newBundle returns the command bundle.
func (c *cli) newBundle() *cobra.Command {
	return &cobra.Command{
		Use:   "bundle FILE",
		Short: "Write what a bug report needs into a file, without passwords",
		Args:  cobra.ExactArgs(1),
		Long:  "The file is compressed JSON. With --from FILE all other commands read it in place of the cluster.",
		RunE:  c.runBundle,
	}
}

// runBundle reads the cluster and writes the bundle.
func (c *cli) runBundle(cmd *cobra.Command, args []string) error {
	ctx := cmd.Context()
	snapshot, err := c.read(ctx, "")
	if err != nil {
		return err
	}

	if c.from == "" {
		err = c.readAllEgressPods(ctx, &snapshot)
		if err != nil {
			return err
		}

		c.readPages(ctx, append(snapshot.Controllers, snapshot.Pods...), &snapshot)
	}

	snapshot.hideSecrets()
	err = snapshot.write(args[0])
	if err != nil {
		return err
	}

	for _, text := range snapshot.LeftOut {
		fmt.Fprintln(cmd.OutOrStdout(), "left out:", lb.Line(text, maxText))
	}

	return nil
}

// write writes a bundle to a file.
func (s *Snapshot) write(name string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}

	w := gzip.NewWriter(f)
	return errors.Join(
		json.NewEncoder(w).Encode(s),
		w.Close(),
		f.Close(),
	)
}

// maxBundle bounds the size of an expanded bundle, in bytes.
const maxBundle = 2 << 30

// readBundle reads a bundle, which a stranger may have written.
func readBundle(name string) (s Snapshot, err error) {
	f, err := os.Open(name)
	if err != nil {
		return s, err
	}
	defer f.Close()

	r, err := gzip.NewReader(f)
	if err == nil {
		err = json.NewDecoder(io.LimitReader(r, maxBundle)).Decode(&s)
	}

	if err != nil {
		return s, fmt.Errorf("read the bundle %s: %w", name, err)
	}

	dropNil(reflect.ValueOf(&s).Elem())
	dropNil(reflect.ValueOf(&s.Objects).Elem())
	s.ReadOptions()
	return s, nil
}

// dropNil removes the nil objects from the lists of a struct. No API server has them.
func dropNil(v reflect.Value) {
	for _, list := range v.Fields() {
		if list.Kind() != reflect.Slice || list.Type().Elem().Kind() != reflect.Pointer {
			continue
		}

		kept := reflect.MakeSlice(list.Type(), 0, list.Len())
		for i := range list.Len() {
			object := list.Index(i)
			if !object.IsNil() {
				kept = reflect.Append(kept, object)
			}
		}

		list.Set(kept)
	}
}
