"""``ramen classify``: files into labels, a page of what adaptation changed, and folders of classes."""
