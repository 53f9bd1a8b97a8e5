"""Generated from the `.proto` files beside this folder: `make proto`."""
