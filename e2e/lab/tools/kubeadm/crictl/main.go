// Command crictl is what kind calls of the cri-tools' crictl: inspecti and images.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "crictl:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	conn, err := grpc.NewClient(
		"unix:///run/containerd/containerd.sock",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	images := cri.NewImageServiceClient(conn)
	switch {
	case len(args) == 2 && args[0] == "inspecti":
		return inspect(ctx, images, args[1])
	case len(args) > 0 && args[0] == "images":
		r, err := images.ListImages(ctx, &cri.ListImagesRequest{})
		if err != nil {
			return err
		}
		for _, i := range r.Images {
			fmt.Println(i.RepoTags, i.Id, i.Size)
		}
		return nil
	}
	return errors.New("usage: crictl inspecti IMAGE | crictl images")
}

func inspect(ctx context.Context, images cri.ImageServiceClient, name string) error {
	r, err := images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
	if err != nil {
		return err
	}
	if r.Image == nil {
		return fmt.Errorf("no such image %q present", name)
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"status": map[string]any{
		"id":          r.Image.Id,
		"repoTags":    r.Image.RepoTags,
		"repoDigests": r.Image.RepoDigests,
		"size":        fmt.Sprint(r.Image.Size),
	}})
}
